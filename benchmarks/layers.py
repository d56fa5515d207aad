"""Where the engine's time goes, layer by layer: each row of a program is timed alone, in the order of the program.

    python benchmarks/layers.py model.fsz:3x224x224 --batch 1
    python benchmarks/layers.py resnet50-0.9                 a network of torchvision, pruned at random weights

Rows of one step are added up: a convolution, its halo, moves to other levels. GFLOP/s count the weights that are left,
and the time of all of a step's rows. One thread.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from fedsparsify.inference import Engine
from fedsparsify.inference.frontend.fusion import Shape
from fedsparsify.inference.frontend.steps import Conv, Step
from fedsparsify.inference.kernels.program_table import Kind
from fedsparsify.inference.runtime.batch_plan import Job
from fedsparsify.inference.runtime.jobs import Jobs, JobWords

ROUNDS = 15
CALLS = 1000  # of a row that does nothing, to time the call itself
LEAST = 0.5  # microseconds below which a kind of row is not named


@dataclass
class Line:
    """One step: what it computes, and microseconds by kind of row."""

    name: str
    text: str = ""
    products: int = 0  # by the weights that are left
    micros: Counter[str] = field(default_factory=Counter)


def lines_of(model: Path, sample: tuple[int, ...], samples: int, lanes: int | None) -> list[Line]:
    """One line per step, in the order of the program."""
    engine = Engine(model, threads=1, lanes=lanes)
    batch = np.sin(np.arange(samples * prod(sample), dtype=np.float32) * 0.7).reshape(samples, *sample)
    out = engine.run(batch)
    planner = engine._planner
    shapes = planner.shapes(planner.sample_shape(sample))
    lines = {step.name: _line(step, shapes, samples) for step in planner.steps(planner.sample_shape(sample))}
    made: dict[str, Line] = {}
    for job in engine._plans[batch.shape].jobs:
        seconds = time_rows(engine, job, batch.ctypes.data, out.ctypes.data)
        for name, row, time in zip(job.program.row_steps, job.program.tables[0], seconds, strict=True):
            line = made.setdefault(name, lines.get(name, Line(name)))
            line.micros[Kind(int(row["kind"])).name.lower()] += 1e6 * time
    return list(made.values())


def time_rows(engine: Engine, job: Job, x: int, y: int) -> NDArray[np.float64]:
    """Median seconds of each row of a job."""
    program, arena = job.program, job.program.arena()
    headers = [program.headers[0].copy() for _ in program.tables[0]]
    for k, header in enumerate(headers):
        header[:2] = header[0] + k * program.tables[0].itemsize, 1

    def timed(jobs: Jobs) -> float:
        started = perf_counter()
        engine._native.execute(jobs.address, 1, arena.address, x + job.source, y + job.target)
        return perf_counter() - started

    alone = [Jobs.of([JobWords(header.ctypes.data, samples=job.samples)]) for header in headers]
    turns = [[timed(jobs) for jobs in alone] for _ in range(ROUNDS)]
    idle = Jobs.of([JobWords(headers[0].ctypes.data, samples=0)])
    call = median(timed(idle) for _ in range(CALLS))
    return np.maximum(np.median(turns, axis=0) - call, 0)


def _line(step: Step, shapes: dict[str, Shape], samples: int) -> Line:
    shape = shapes[step.name]
    made = " × ".join(map(str, shape))
    if not isinstance(step, Conv):
        return Line(step.name, f"{type(step).__name__.lower()} → {made}")
    kernel = "×".join(map(str, step.weight.shape[2:]))
    stride = f" stride {step.stride[0]}" if max(step.stride) > 1 else ""
    groups = f" groups {step.groups}" if step.groups > 1 else ""
    text = f"{kernel}{stride}{groups}, {shapes[step.inputs[0]][0]} → {made}, density {step.weight.density:.2f}"
    return Line(step.name, text, step.weight.places.size * prod(shape[1:]) * samples)


def report(lines: list[Line]) -> None:
    """Print the table, then the sums by kind of row."""
    whole = sum(line.micros.total() for line in lines)
    print("| step | | µs | share | GFLOP/s | rows, µs |\n|---|---|---|---|---|---|")
    kinds: Counter[str] = Counter()
    for line in lines:
        total = line.micros.total()
        kinds += line.micros
        rate = f"{2e-3 * line.products / total:.0f}" if line.products and total else ""
        rows = ", ".join(f"{kind} {micros:.0f}" for kind, micros in line.micros.items() if micros >= LEAST)
        print(f"| {line.name} | {line.text} | {total:.0f} | {total / whole:.1%} | {rate} | {rows} |")
    rate = f"{2e-3 * sum(line.products for line in lines) / whole:.0f}"
    rows = ", ".join(f"{kind} {micros:.0f}" for kind, micros in kinds.most_common())
    print(f"| all | | {whole:.0f} | | {rate} | {rows} |")


def main() -> None:
    """Print the table of one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="FILE:SHAPE, or a network of torchvision with its sparsity")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--lanes", type=int)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-models"))
    options = parser.parse_args()
    file, _, shape = options.model.rpartition(":")
    if file:
        model, sample = Path(file), tuple(int(side) for side in shape.split("x"))
    else:
        from torchvision_models import SHAPE, write_torchvision_model

        name, _, sparsity = shape.rpartition("-")
        model, sample = write_torchvision_model(name, float(sparsity), options.folder), SHAPE
    report(lines_of(model, sample, options.batch, options.lanes))


if __name__ == "__main__":
    main()
