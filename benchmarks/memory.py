"""Memory that engines hold while they serve, and the room that they take on a disk.

    python benchmarks/memory.py serving model.fsz:3x32x32 [--deepsparse PYTHON]
    python benchmarks/memory.py installed [NAME …]       a fresh environment for each package, from the index of pip

Serving: each engine in a process of its own, started several times; the median of the resident peaks (VmHWM).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from inference import DENSE, Worker

from fedsparsify.engines import write_fixed_onnx
from fedsparsify.wire.artefact import load, load_graph

ROOT = Path(__file__).parent.parent
TRIES = 3


def serving(text: str, deepsparse: str | None) -> None:
    """Peak and present memory of every engine, at batch 1 and 64, on one thread."""
    name, _, shape = text.rpartition(":")
    model = Path(name)
    pythons = dict.fromkeys(("fedsparsify", *DENSE), sys.executable)
    if deepsparse:
        pythons["deepsparse"] = deepsparse
    with TemporaryDirectory() as folder:
        for batch in (1, 64):
            onnx = Path(folder) / f"{batch}.onnx"
            write_fixed_onnx(onnx, load(model), load_graph(model), [int(side) for side in shape.split("x")], batch)
            for engine, python in pythons.items():
                found = []
                for _ in range(TRIES):
                    worker = Worker(engine, python, model, onnx, shape, batch, 1)
                    if "missing" not in worker.ready:
                        worker.ask("time 0.5")
                        found.append((worker.ask("memory"), worker.ready["ready_seconds"]))
                    worker.close()
                if found:
                    peak, rest = (median(memory[key] for memory, _ in found) / 1e6 for key in ("peak", "serving"))
                    ready = median(seconds for _, seconds in found)
                    what = f"peak {peak:.0f} MB, then {rest:.0f} MB, ready in {ready:.2f} s"
                    print(f"{engine:>12} batch {batch:<3} {what}", flush=True)


def installed(names: Sequence[str]) -> None:
    """Megabytes that each package adds to an empty environment, with all that it needs.

    Ours is the wheel that `make dist` built, where there is one. torch is that of constraints.txt: its CPU build.
    """
    (ours,) = (*(ROOT / "dist").glob("*manylinux*.whl"),)[:1] or (ROOT,)
    wanted = {
        "fedsparsify": [f"{ours}"],
        "fedsparsify[infer]": [f"{ours}[infer]"],
        "fedsparsify[train]": [f"{ours}[train]"],
        "fedsparsify[all]": [f"{ours}[all]"],
        "onnxruntime": ["onnxruntime"],
        "openvino": ["openvino"],
        "torch": ["torch"],
    }
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # pip looks there too
    pins = ["--constraint", str(ROOT / "constraints.txt")]
    if unknown := {*names} - {*wanted}:
        raise SystemExit(f"packages are {', '.join(wanted)}. Received: {', '.join(unknown)}.")
    for name, packages in wanted.items():
        if names and name not in names:
            continue
        with TemporaryDirectory() as folder:
            venv.create(folder, with_pip=True)
            (site,) = Path(folder).glob("lib/python*/site-packages")
            before = {path.name for path in site.iterdir()}
            command = [f"{folder}/bin/pip", "install", "--quiet", "--no-cache-dir", "--no-compile", *pins, *packages]
            subprocess.run(command, check=True, env=env)
            sizes = {path.name: _size(path) for path in site.iterdir() if path.name not in before}
            largest = sorted(sizes, key=lambda part: -sizes[part])[:4]
            parts = ", ".join(f"{part} {sizes[part] / 1e6:.0f}" for part in largest)
            print(f"{name:>20} {sum(sizes.values()) / 1e6:.0f} MB ({parts})", flush=True)


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in [path, *path.rglob("*")] if part.is_file())


def main() -> None:
    """One of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["serving", "installed"])
    parser.add_argument("names", nargs="*", help="serving: FILE:SHAPE; installed: packages, all where none is named")
    parser.add_argument("--deepsparse", help="the Python of an environment with DeepSparse and onnx")
    options = parser.parse_args()
    if options.what == "installed":
        installed(options.names)
    elif len(options.names) != 1:
        parser.error("serving needs a model, such as model.fsz:3x32x32")
    else:
        serving(options.names[0], options.deepsparse)


if __name__ == "__main__":
    main()
