"""What pyproject.toml cannot say: on Linux on x86-64 a wheel carries machine code, and its tag says so."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "tools"))

from make_images import make_images, wanted
from make_library import make_library

# Code images are data to the loader and call no library, and the C library names no version of libc, so that any Linux
# will do: glibc from 2.17 on, or musl.
PLATFORMS = "manylinux2014_x86_64.manylinux_2_17_x86_64.musllinux_1_1_x86_64"


class BuildWithImages(build_py):
    """Compiles the kernels into the wheel; an editable installation compiles its own, as its sources may change."""

    def run(self) -> None:
        """Copy the package, then compile."""
        super().run()
        if wanted() and not self.editable_mode:
            package = Path(self.build_lib).absolute() / "fedsparsify"
            make_images(package / "native" / "images")
            make_library(package / "embed")


class TaggedWheel(bdist_wheel):
    """A wheel for any Python 3 whose platform depends on what is in it."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform."""
        return "py3", "none", PLATFORMS if wanted() else "any"


setup(cmdclass={"build_py": BuildWithImages, "bdist_wheel": TaggedWheel})
