"""Compile the kernels for every level of processors: the code images that a wheel carries.

    python tools/make_images.py FOLDER

Each level takes a process of its own, as numba compiles for one processor per process. Two builds from the same
sources, with the same numba, give the same bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ["numba>=0.62", "numpy>=1.26"]
WITHOUT = "FEDSPARSIFY_WITHOUT_IMAGES"  # set: a wheel for any machine, whose kernels numba compiles at the first use


def wanted() -> bool:
    """Whether wheels built here carry code images."""
    here = sys.platform == "linux" and os.uname().machine == "x86_64" and sys.maxsize > 2**32
    return here and not os.environ.get(WITHOUT)


def make_images(folder: Path) -> None:
    """Write the code images of all levels to a folder."""
    sys.path.insert(0, str(ROOT))
    from fedsparsify.native.levels import LEVELS, VARIABLE

    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    started = []
    for level in LEVELS:
        command = [sys.executable, "-W", "ignore", __file__, str(folder), level.name]
        started.append(
            (level, subprocess.Popen(command, env={**os.environ, VARIABLE: level.name, "PYTHONPATH": paths}))
        )
    failed = [level.name for level, process in started if process.wait() != 0]
    if failed:
        raise SystemExit(f"no kernels could be made for {', '.join(failed)}: see above")


def make_level(folder: Path, name: str) -> None:
    """Write the code images of the level that the environment names."""
    from fedsparsify.inference.runtime.native_calls import INFERENCE_CODE, INT8_CODE
    from fedsparsify.native.codegen import Code
    from fedsparsify.native.image_files import keep
    from fedsparsify.native.levels import LEVELS
    from fedsparsify.training.native.kernel_code import CONVOLUTIONS, PERCEPTRONS

    (lanes,) = (level.lanes for level in LEVELS if level.name == name)
    codes = (INFERENCE_CODE, INT8_CODE, PERCEPTRONS, CONVOLUTIONS)
    for code in (INT8_CODE,) if name.endswith("-vnni") else codes:
        path = folder / code.shipped_name(name)
        keep(path, *Code(code, lanes).image())
        print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        make_level(Path(sys.argv[1]), sys.argv[2])
    else:
        make_images(Path(sys.argv[1]))
