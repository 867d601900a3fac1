"""Compiles the native engine (csrc/) into ``gossamer/ops/native/libgossamer.so``.

Everything else is in pyproject.toml. The library knows nothing of Python or torch, so that one
file serves every version of both; where it cannot be compiled the package installs without it and
runs on the masked backend.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("csrc").glob("*.cpp"))
HEADERS = sorted(str(path) for path in Path("csrc").glob("*.h"))
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"]
# GCC's OpenMP runtime is the one that torch brings on Linux. Elsewhere the engine starts threads of
# its own, since a second OpenMP runtime in one process would be refused.
OPENMP = ["-fopenmp", "-DGS_OPENMP"] if sys.platform.startswith("linux") else ["-pthread"]


class BuildLibrary(build_ext):
    """A shared library under its plain name, and a plain word where there is none."""

    def get_ext_filename(self, fullname: str) -> str:
        """``gossamer/ops/native/libgossamer.so``, whatever the Python."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        """Compile; a failure is told, not raised (``optional``)."""
        try:
            super().build_extension(ext)
        except Exception:
            print(
                "gossamer: no native engine (is there a C++17 compiler?); the package works on the "
                "masked backend, at the cost of dense layers",
                file=sys.stderr,
            )
            raise


class PlatformWheel(bdist_wheel):
    """The library depends on the platform alone."""

    def get_tag(self) -> tuple[str, str, str]:
        """Any Python 3, this platform."""
        return ("py3", "none", super().get_tag()[2])


setup(
    ext_modules=[
        Extension(
            "gossamer.ops.native.libgossamer",
            sources=SOURCES,
            depends=HEADERS,
            language="c++",
            extra_compile_args=[*FLAGS, *OPENMP],
            extra_link_args=OPENMP[:1],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
