"""The wheel of Megatron's drop-in and of `tidepool_loop`, built beside the PyTorch of this Python:

    pip wheel --no-build-isolation --no-deps --wheel-dir dist .

An isolated build would not see that PyTorch. examples/megatron/build.sh names what else is needed.
"""

import os
import pathlib
import re
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parent
HERE = pathlib.Path("examples/megatron")
LOOP = pathlib.Path("examples/torch_loop/tidepool_loop.py")
BUILD = pathlib.Path("build/python")  # what setuptools leaves behind

numbers = re.findall(r"#define TIDEPOOL_VERSION_\w+ (\d+)",
                     (ROOT / "include/tidepool/version.hpp").read_text())


class by_script(build_ext):
    def build_extension(self, extension):
        folder = pathlib.Path(self.get_ext_fullpath(extension.name)).parent
        ended = subprocess.run([str(ROOT / HERE / "build.sh"), str(folder.resolve())],
                               env={**os.environ, "PYTHON": sys.executable})
        if ended.returncode == 77:
            raise SystemExit("tidepool: what build.sh misses is named above; where this Python does"
                             " have torch, call pip with --no-build-isolation")
        ended.check_returncode()


class with_loop(build_py):
    """`py_modules` takes modules of one folder only."""

    def find_modules(self):
        return [*super().find_modules(), ("", LOOP.stem, str(LOOP))]


os.chdir(ROOT)
BUILD.mkdir(parents=True, exist_ok=True)
setup(
    name="tidepool-megatron",
    version=".".join(numbers),
    description="Activation offloading by Tidepool, for Megatron-LM and for loops of PyTorch",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.8",
    package_dir={"": str(HERE)},
    py_modules=["tidepool_offload"],
    ext_modules=[Extension("tidepool_megatron", [str(HERE / "tidepool_megatron.cpp")])],
    cmdclass={"build_ext": by_script, "build_py": with_loop},
    options={"build": {"build_base": str(BUILD)}, "egg_info": {"egg_base": str(BUILD)}},
)
