"""The Conan 2 recipe. It takes the source tree in which it is kept:

    conan create packaging/conan
"""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load

ROOT = os.path.join("..", "..")


class Tidepool(ConanFile):
    name = "tidepool"
    description = "Offloads activations after forward, reloads them before backward"
    license = "Apache-2.0"
    package_type = "header-library"
    settings = "os", "compiler", "build_type", "arch"
    no_copy_source = True

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, ROOT, "include/tidepool/version.hpp"))
        parts = [re.search(rf"VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
        self.version = ".".join(parts)

    def export_sources(self):
        root = os.path.join(self.recipe_folder, ROOT)
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*"):
            copy(self, pattern, root, self.export_sources_folder)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCH"):
            toolchain.cache_variables[f"TIDEPOOL_BUILD_{part}"] = False
        toolchain.cache_variables["TIDEPOOL_CUDA"] = "OFF"  # what uses the package chooses for itself
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        # The package's own CMake files are used, not ones that Conan makes.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append(os.path.join("share", "cmake", "tidepool"))
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
