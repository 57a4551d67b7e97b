#!/usr/bin/env python3
"""Runs the Conan recipe with Conan's classes replaced by plain CMake, since Conan is no part of
Debian. OUT/package is then what Conan would keep.

    conan.py RECIPE OUT CMAKE GENERATOR VERSION
"""
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import types

sys.dont_write_bytecode = True  # the recipe's folder is part of the tree
recipe, out, cmake, generator, version = sys.argv[1:]
out = pathlib.Path(out)
shutil.rmtree(out, ignore_errors=True)


class ConanFile:
    def __init__(self):
        self.recipe_folder = str(pathlib.Path(recipe).parent)
        self.export_sources_folder = self.source_folder = str(out / "source")
        self.build_folder = str(out / "build")
        self.package_folder = str(out / "package")
        self.cache_variables = {}
        self.cpp_info = types.SimpleNamespace(builddirs=[], set_property=lambda *_: None)
        self.info = types.SimpleNamespace(clear=lambda: None)


class CMakeToolchain:
    def __init__(self, conanfile):
        self.cache_variables = {}
        self.conanfile = conanfile

    def generate(self):
        self.conanfile.cache_variables = self.cache_variables


class CMake:
    def __init__(self, conanfile):
        self.it = conanfile

    def run(self, *arguments):
        subprocess.run([cmake, *arguments], check=True)

    def configure(self):
        spell = {True: "ON", False: "OFF"}
        variables = [f"-D{name}={spell.get(value, value)}" for name, value in self.it.cache_variables.items()]
        self.run("-S", self.it.source_folder, "-B", self.it.build_folder, "-G", generator, *variables)

    def build(self):
        self.run("--build", self.it.build_folder)

    def install(self):
        self.run("--install", self.it.build_folder, "--prefix", self.it.package_folder)


def load(_, path):
    return pathlib.Path(path).read_text()


def copy(_, pattern, source, target):
    source, target = pathlib.Path(source), pathlib.Path(target)
    # In Conan a star crosses folders.
    for file in source.glob(pattern.replace("/*", "/**/*")):
        if file.is_file():
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)


def module(name, **members):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


module("conan", ConanFile=ConanFile)
module("conan.tools")
module("conan.tools.cmake", CMake=CMake, CMakeToolchain=CMakeToolchain)
module("conan.tools.files", copy=copy, load=load)
spec = importlib.util.spec_from_file_location("recipe", recipe)
loaded = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loaded)

it = loaded.Tidepool()
it.set_version()
if it.version != version:
    sys.exit(f"the recipe says {it.version}, not {version}")
for step in ("export_sources", "generate", "build", "package", "package_id", "package_info"):
    getattr(it, step)()
for file in ("licenses/LICENSE", *(f"{folder}/tidepool-config.cmake" for folder in it.cpp_info.builddirs)):
    if not (out / "package" / file).exists():
        sys.exit(f"the package has no {file}")
