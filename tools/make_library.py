"""Compile the C library of plans, embed/libfedsparsify.so, that a wheel carries beside its source.

    python tools/make_library.py FOLDER

It is linked without libc: what it calls (malloc, mmap and the like) is found in the program that loads it, in any
version of glibc and in musl.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "fedsparsify" / "embed" / "fedsparsify.c"
NAME = "libfedsparsify.so"
FLAGS = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-march=x86-64", "-mtune=generic", "-fno-stack-protector", "-fPIC"),
    *("-shared", "-nostdlib", "-s", f"-Wl,-soname,{NAME}", "-Wl,--build-id=none", "-Wl,-z,noexecstack"),
)


def make_library(folder: Path) -> Path | None:
    """Write the library to a folder; None where no C compiler is."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        print(f"no C compiler is here: {NAME} is left out", flush=True)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, *FLAGS, "-o", folder / NAME, SOURCE], check=True)
    return folder / NAME


if __name__ == "__main__":
    make_library(Path(sys.argv[1]))
