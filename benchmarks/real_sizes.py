"""Networks of torchvision at 224 px against dense engines, row by row: `real_sizes.py NETWORK… [--threads 1 2]`.

    python benchmarks/real_sizes.py --prepare mobilenet_v2           write the files only
    python benchmarks/real_sizes.py mobilenet_v2 --batches 1 --threads 1
    python benchmarks/real_sizes.py --xnnpack PYTHON                 XNNPACK lives in an environment of its own

Weights are random (normal, He's width) and pruned by magnitude over all layers together. A row has a process for each
sparsity and for each dense engine, whose speed does not depend on zeros. They take turns as in inference.py, whose
figures these are: a cell is milliseconds, and how many times as fast as the best dense engine. An engine that does not
run here has none.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

import xnnpack
from inference import Worker
from torchvision_models import NETWORKS, SHAPE, write_torchvision_model

from fedsparsify.engines import write_fixed_onnx
from fedsparsify.wire.artefact import load, load_graph

DENSE = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "xnnpack": "XNNPACK"}


def onnx_of(model: Path, network: str, batch: int, folder: Path) -> Path:
    """The network for dense engines, of fixed shape; made once."""
    path = folder / f"{network}-{batch}.onnx"
    if not path.exists():
        write_fixed_onnx(path, load(model), load_graph(model), SHAPE, batch)
    return path


def measure(models: dict[float, Path], onnx: Path, batch: int, threads: int, options: argparse.Namespace) -> list[str]:
    """One row of the table: the dense engines, then each sparsity."""
    words = (onnx, "x".join(map(str, SHAPE)), batch, threads)
    first = next(iter(models.values()))
    pythons = dict.fromkeys(DENSE, sys.executable) | {"xnnpack": options.xnnpack}
    dense = {name: Worker(name, python, first, *words) for name, python in pythons.items()}
    ours = {sparsity: Worker("fedsparsify", sys.executable, model, *words) for sparsity, model in models.items()}
    workers = [*dense.values(), *ours.values()]
    present = [worker for worker in workers if "missing" not in worker.ready]
    if absent := [worker.engine for worker in workers if worker not in present]:
        print(f"{onnx.stem}: not here: {', '.join(absent)}", file=sys.stderr, flush=True)
    if not {*ours.values()} <= {*present} or not {*dense.values()} & {*present}:
        raise SystemExit(f"{onnx.stem}: there is nothing to compare")
    for _, worker in product(range(options.turns), present):
        worker.turn(options.seconds)
    for worker in workers:
        worker.close()
    others = {name: worker.figure(threads) for name, worker in dense.items() if worker in present}
    times = {sparsity: worker.figure(threads) for sparsity, worker in ours.items()}
    best = min(others.values())
    if options.out:
        row = {"network": onnx.stem, "threads": threads, "dense": others, "sparse": times}
        with options.out.open("a") as lines:
            print(json.dumps(row | {"quiet": min(len(worker.quiet) for worker in present)}), file=lines)
    cells = [f"{others[name]:.4g}" if name in others else "–" for name in DENSE]
    return cells + [f"{ms:.4g} ({best / ms:.2f}×)" for ms in times.values()]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--sparsities", nargs="*", type=float, default=[0.8, 0.9, 0.95])
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-models"))
    parser.add_argument("--xnnpack", default=sys.executable, help="the Python of an environment with litert-torch")
    parser.add_argument("--out", type=Path, help="JSON lines of the same figures")
    parser.add_argument("--prepare", action="store_true", help="write the files and measure nothing")
    options = parser.parse_args()
    head = ["network", "batch", "threads", *DENSE.values(), *map(str, options.sparsities)]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for network, batch in product(options.networks, options.batches):
        models = {s: write_torchvision_model(network, s, options.folder) for s in options.sparsities}
        onnx = onnx_of(models[options.sparsities[0]], network, batch, options.folder)
        size = "x".join(map(str, SHAPE))
        xnnpack.write_once(options.xnnpack, models[options.sparsities[0]], size, batch, onnx.with_suffix(".tflite"))
        for threads in [] if options.prepare else options.threads:
            cells = [network, str(batch), str(threads), *measure(models, onnx, batch, threads, options)]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
