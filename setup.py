"""Finds the packages, and builds the kernels of the ONNX runtime as an optional library.

Without a compiler the installation goes on. The library calls nothing of Python's, so a wheel serves every version from
LEAST_PYTHON on. EDGEDECODE_BUILD_KERNELS=0 leaves it out. Everything else is in pyproject.toml.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

RINGS = {"edgedecode": "edgedecode", **{f"edgedecode.{each}": each for each in ("apps", "bench", "export", "runtimes")}}
"""The folders of the packages: four of them live beside `edgedecode/`."""
FOLDER = Path("runtimes/onnx/kernels")
LEAST_PYTHON = "cp311"
# No contraction of a product and a sum: where one is wanted the source writes it, and all processors round alike.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-pthread", "-g0"]
WINDOWS_FLAGS = ["/std:c++17", "/O2", "/fp:precise"]


class BuildLibrary(build_ext):
    """Builds a plain shared library: it is loaded by ctypes and the engine, and serves every version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        suffix = ".dll" if sys.platform == "win32" else ".so"
        return str(Path(*fullname.split(".")).with_suffix(suffix))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols)


windows = sys.platform == "win32"
library = Extension(
    "edgedecode.runtimes.onnx.kernels._rows",
    sources=sorted(str(path) for path in FOLDER.glob("*.cpp")),
    depends=sorted(str(path) for path in FOLDER.glob("*.h")),
    extra_compile_args=WINDOWS_FLAGS if windows else FLAGS,
    extra_link_args=[] if windows else ["-pthread"],
    language="c++",
    optional=True,
    py_limited_api=True,
)
setup(
    package_dir=RINGS,
    packages=[*RINGS, *(f"{ring}.{name}" for ring, folder in RINGS.items() for name in find_packages(folder))],
    options={"bdist_wheel": {"py_limited_api": LEAST_PYTHON}},
    ext_modules=[] if os.environ.get("EDGEDECODE_BUILD_KERNELS") == "0" else [library],
    cmdclass={"build_ext": BuildLibrary},
)
