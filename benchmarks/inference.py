"""How fast sparse models run, against other engines on the same machine, one process each, taking turns.

    python benchmarks/inference.py                                  the paper's networks, pruned stand-ins
    python benchmarks/inference.py --model runs/a/model.fsz:3x32x32 real ones
    python benchmarks/inference.py --networks resnet50 mobilenet_v2 torchvision's at 224 px, pruned at random weights
    python benchmarks/inference.py --deepsparse PYTHON              DeepSparse lives in an environment of its own
    python benchmarks/inference.py --xnnpack PYTHON                 and so does XNNPACK: torch, litert-torch

Each engine is timed for a slice of a second in turn, and a turn's figure is the median of its batches. Turns in which
other processes took more than a tenth of a core do not count, for any engine; there are more until each engine has
enough quiet ones. A cell is the median of the quiet turns. Where a busy machine leaves too few, a cell of one thread is
the lower quartile of the processor's time that the turns took, and says so by its number of quiet turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torchvision_models
import xnnpack
from machine_peak import fma_gflops
from pruned_models import NETWORKS, write_model
from torchvision_models import write_torchvision_model

from fedsparsify.engines import write_fixed_onnx
from fedsparsify.inference.frontend.fusion import fuse
from fedsparsify.inference.frontend.steps import Conv
from fedsparsify.wire.artefact import load, load_graph

HERE = Path(__file__).parent
MOST_OTHERS = 0.1  # cores that other processes may take in a turn that counts
LONGEST_WAIT = 1  # seconds for others to finish, before a turn begins anyway
PATIENCE = 2  # times as many turns as asked for, until enough were quiet
DENSE = ("onnxruntime", "openvino", "pytorch", "xnnpack")
ELSEWHERE = ("deepsparse", "xnnpack")  # engines whose packages may need an environment of their own


class Worker:
    """An engine in a process of its own."""

    def __init__(self, engine: str, python: str, *words: object, tree: Path = HERE.parent) -> None:
        self.engine = engine
        command = [python, str(HERE / "inference_worker.py"), engine, *map(str, words)]
        folders = [str(tree), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self.ready = self._read()
        self.turns: list[tuple[float, float, float]] = []  # cores that others took, milliseconds, and of the processor

    def turn(self, seconds: float) -> None:
        """Time the engine for a while, and what else the machine did meanwhile."""
        wait_for_quiet()
        busy, started = busy_seconds(), perf_counter()
        answer = self.ask(f"time {seconds}")
        others = busy_seconds() - busy - sum(answer["own"]) / 1e3
        self.turns.append((others / (perf_counter() - started), median(answer["ms"]), median(answer["own"])))

    @property
    def quiet(self) -> list[float]:
        """Figures of the turns that count."""
        return [ms for others, ms, _ in self.turns if others <= MOST_OTHERS]

    def figure(self, threads: int) -> float:
        """The median of the quiet turns. Where they are too few: of one thread, the lower quartile of the processor's
        time; of several, the median of the least disturbed quarter."""
        if len(self.quiet) >= 3:
            return median(self.quiet)
        if threads == 1:
            return float(np.quantile([own for _, _, own in self.turns], 0.25))
        return median(ms for _, ms, _ in sorted(self.turns)[: max(3, len(self.turns) // 4)])

    def ask(self, order: str) -> Any:
        """Send an order and wait for its answer."""
        assert self.process.stdin
        print(order, file=self.process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"missing": self.engine}

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def busy_seconds() -> float:
    """Time that all processes have taken of the cores on which this one may run, since the machine started."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    ticks = sum(sum(map(int, words[1:4])) for words in lines if words[0] in cores)
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_for_quiet() -> None:
    """Wait until other processes leave the machine alone, but not for long."""
    for _ in range(LONGEST_WAIT * 10):
        busy = busy_seconds()
        sleep(0.1)
        if busy_seconds() - busy < 0.015:  # one tick
            return


def macs_of(model: Path, shape: str) -> list[tuple[str, int, int]]:
    """Per layer: multiplications of the dense layer and those left, for one sample."""
    sides = tuple(int(side) for side in shape.split("x"))
    fused = fuse(load_graph(model), load(model).tensors())
    steps = fused.steps
    readers = [step for step in steps if "input" in step.inputs]
    if type(readers[0]).__name__ == "Flatten":
        sides = (int(np.prod(sides)),)
    shapes = fused.shapes(sides)
    rows = []
    for step in steps:
        if isinstance(step, Conv):
            pixels = int(np.prod(shapes[step.name][1:]))
            rows.append((step.name, int(np.prod(step.weight.shape)) * pixels, int(step.weight.places.size) * pixels))
    return rows


def measure(model: Path, shape: str, batch: int, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of each engine for one model, batch and number of threads."""
    pythons = dict.fromkeys(options.engines, sys.executable)
    pythons |= {name: python for name in ELSEWHERE if (python := getattr(options, name))}
    onnx = options.folder / f"{model.stem}-{batch}.onnx"
    write_fixed_onnx(onnx, load(model), load_graph(model), [int(side) for side in shape.split("x")], batch)
    if "xnnpack" in pythons:
        xnnpack.write_once(pythons["xnnpack"], model, shape, batch, onnx.with_suffix(".tflite"))
    workers = [Worker(name, python, model, onnx, shape, batch, threads) for name, python in pythons.items()]
    present = [worker for worker in workers if "missing" not in worker.ready]
    for _ in range(PATIENCE * options.turns):
        for worker in present:
            worker.turn(options.seconds)
        if all(len(worker.quiet) >= options.turns for worker in present):
            break
    found = {worker.engine: worker.figure(threads) for worker in present}
    quiet = {worker.engine: len(worker.quiet) for worker in present}
    memory = {worker.engine: worker.ask("memory") for worker in present}
    ready = {worker.engine: worker.ready["ready_seconds"] for worker in present}
    for worker in workers:
        worker.close()
    turns = {worker.engine: worker.turns for worker in present}
    missing = [worker.engine for worker in workers if worker not in present]
    return {
        "ms": found,
        "quiet": quiet,
        "turns": turns,
        "memory": memory,
        "ready_seconds": ready,
        "missing": missing,
    }


def report(cell: dict[str, Any], left: int, dense: int, peak: float) -> None:
    """One line a cell: milliseconds, ratios and the fraction of the machine's peak on the operations left."""
    ms = cell["ms"]
    ours = ms["fedsparsify"]
    others = {name: ms[name] for name in DENSE if name in ms}
    best = min(others, key=lambda name: others[name]) if others else None
    times = "  ".join(f"{name} {value:.3f}" for name, value in ms.items())
    text = f"{cell['model']:>12} batch {cell['batch']:<3} threads {cell['threads']}  ms: {times}"
    if best:
        text += f"  | {others[best] / ours:.2f}x over {best}"
    if "deepsparse" in ms:
        text += f", {ms['deepsparse'] / ours:.2f}x over deepsparse"
    shares = {name: 2 * left * cell["batch"] / value / 1e6 / peak / cell["threads"] for name, value in ms.items()}
    of_peak = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    text += f"  | ops left 1/{dense / max(left, 1):.1f}, of peak: {of_peak}"
    absent = f"  | not here: {', '.join(cell['missing'])}" if cell["missing"] else ""
    print(f"{text}  | quiet turns {min(cell['quiet'].values())}{absent}", flush=True)


def main() -> None:
    """Measure every cell and write the results as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], help="FILE:SHAPE, such as model.fsz:3x32x32")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--sparsities", nargs="*", type=float, default=[0.9, 0.95, 0.99])
    parser.add_argument("--batches", nargs="*", type=int, default=[64, 1])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--engines", nargs="*", default=["fedsparsify", *DENSE])
    parser.add_argument("--deepsparse", help="the Python of an environment with DeepSparse and onnx")
    parser.add_argument("--xnnpack", help="the Python of an environment with torch and litert-torch")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each engine's turn")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-models"))
    parser.add_argument("--out", type=Path, default=Path("runs/inference.jsonl"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    subjects = [(Path(path), shape) for path, _, shape in (text.rpartition(":") for text in options.model)]
    if not subjects:
        for name, sparsity in product(options.networks, options.sparsities):
            if name in NETWORKS:
                subjects.append((write_model(name, sparsity, options.folder), "x".join(map(str, NETWORKS[name][0]))))
            else:
                model = write_torchvision_model(name, sparsity, options.folder)
                subjects.append((model, "x".join(map(str, torchvision_models.SHAPE))))
    peak = fma_gflops()
    print(f"peak of one core: {peak:.0f} GFLOP/s in registers")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as lines:
        for model, shape in subjects:
            layers = macs_of(model, shape)
            dense, left = sum(row[1] for row in layers), sum(row[2] for row in layers)
            print(
                f"\n{model.stem}: "
                + "  ".join(f"{name} {1 - kept / all_of_it:.2f}" for name, all_of_it, kept in layers)
                + "  (zeros per layer)"
            )
            for threads, batch in product(options.threads, options.batches):
                cell: dict[str, Any] = {"model": model.stem, "batch": batch, "threads": threads, "peak": peak}
                cell |= {"macs": dense, "macs_left": left, "layers": layers}
                cell |= measure(model, shape, batch, threads, options)
                report(cell, left, dense, peak)
                print(json.dumps(cell), file=lines, flush=True)


if __name__ == "__main__":
    main()
