"""`fedsparsify bench`: a sparse model timed beside other engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from rich.table import Table

from ..errors import ModelError
from ..model import Floats
from ..wire.artefact import load, load_facts, load_graph
from .flags import MAX_MEMORY, PATH
from .model_files import model_file
from .screen import Screen
from .time_bar import time_bar
from .units import duration, times


@click.command("bench")
@click.argument("model", type=PATH)
@click.option("--train", is_flag=True, help="time one client's training step instead, beside PyTorch's on one core")
@click.option("--batch", type=click.IntRange(1), help="images per batch  [default: 128; of a training step 32]")
@click.option("--seconds", default=60.0, show_default=True, help="of serving, for each engine")
@click.option("--warmup", default=10.0, show_default=True, help="seconds before that")
@click.option("--streams", default=1, show_default=True, type=click.IntRange(1), help="batches in progress at a time")
@click.option("--threads", type=click.IntRange(1), help="threads per batch  [default: all]")
@click.option("--shape", help="of a sample, such as 3x32x32, if the file does not state it")
@MAX_MEMORY
def command(
    model: Path,
    train: bool,
    batch: int | None,
    seconds: float,
    warmup: float,
    streams: int,
    threads: int | None,
    shape: str | None,
    max_memory: int | None,
) -> None:
    """Time a sparse model by the paper's protocol, beside the dense model on every other engine that is installed.

    Engines take turns of a second. The paper: batch 128 (FashionMNIST 32), 60 seconds after 10 of warm-up.

    \b
    latency, ms     median time of one batch
    batches         how many were served in the time
    items/s         samples per second at that latency, of all streams
    fedsparsify is  the engine's latency over fedsparsify's

    With --train: a step of SGD with momentum on random samples, by the back end that trains this network here, at the
    sparsity of the file; and PyTorch's dense step. ms is the median of a step, samples/s the batch over it.
    """
    with model_file(model) as file:
        if train:
            _train(file, batch or 32, seconds, shape)
        else:
            _infer(file, batch or 128, seconds, warmup, streams, threads, shape, max_memory)


def _infer(
    model: Path,
    batch: int,
    seconds: float,
    warmup: float,
    streams: int,
    threads: int | None,
    shape: str | None,
    max_memory: int | None,
) -> None:
    """Time engines."""
    from ..engines import Subject, installed, write_fixed_onnx
    from ..inference import Engine
    from ..inference.timing import compare

    sides = _sides(shape, load_facts(model))
    engine = Engine(model, threads, max_memory=max_memory)
    if 4 * batch * prod(sides) > engine.max_memory:
        raise ModelError(
            f"a batch of {batch:,} samples of {sides} takes more memory than the engine may; see --max-memory."
        )
    samples = np.random.default_rng(0).standard_normal((batch, *sides), np.float32)
    engine.run(samples)
    engines: dict[str, Callable[[Floats], object]] = {"fedsparsify": engine.run}
    console = Screen()
    with TemporaryDirectory() as folder:
        subject = Subject(model, Path(folder) / "model.onnx", batch, engine.threads)
        try:
            write_fixed_onnx(subject.onnx, load(model), load_graph(model), sides, batch)
        except ImportError:
            console.print("onnx is not installed: only PyTorch can be compared.")
        for name, make in installed().items():
            if subject.can_run(name):
                engines[name] = make(subject)
    with time_bar(f"Timing {', '.join(engines)}", len(engines) * (seconds + warmup)) as show:
        timings = compare(engines, samples, seconds, warmup, streams, show)
    table = Table("engine", "latency, ms", "batches", "items/s", "fedsparsify is")
    for name, timing in timings.items():
        faster = f"{times(timing.latency_ms / timings['fedsparsify'].latency_ms)} × as fast"
        row = f"{timing.latency_ms:.3f}", f"{timing.iterations:,}", f"{timing.items_per_second:,.0f}"
        table.add_row(name, *row, "" if name == "fedsparsify" else faster)
    console.print(table)
    start = f"loaded in {duration(engine.load_seconds)}, first batch in {duration(engine.first_run_seconds or 0.0)}"
    console.print(f"fedsparsify: {start}; {engine.threads} thread{'s' * (engine.threads > 1)}, {engine.lanes} lanes")


def _train(path: Path, batch: int, seconds: float, shape: str | None) -> None:
    """Time training steps."""
    from ..config import RunConfig
    from ..training.step_speed import OURS, compare_steps

    facts, model = load_facts(path), load(path)
    network, classes = facts.get("network"), facts.get("classes")
    if not isinstance(network, str) or type(classes) is not int:
        raise ModelError("the file does not name its network and its classes, which a training step needs.")
    sides = _sides(shape, facts)
    training = RunConfig(network=network, batch_size=batch, lr=1e-3, momentum=0.9, augment="none")
    with time_bar("Timing training steps of fedsparsify and PyTorch, after a first turn of each", seconds) as show:
        speed = compare_steps(network, model, sides, classes, training, seconds, show)
    table = Table("training step", "ms", "samples/s", "fedsparsify is")
    ours = speed.milliseconds[OURS]
    for name, took in speed.milliseconds.items():
        faster = "" if name == OURS else f"{times(took / ours)} × as fast"
        table.add_row(name, f"{took:.2f}", f"{1e3 * batch / took:,.0f}", faster)
    console = Screen()
    console.print(table)
    kept = f"{model.nonzero:,} of {model.layout.total:,} values, sparsity {model.sparsity:.4f}"
    console.print(f"{network}, batch {batch}, one core; back end: {speed.backend}; {kept}")


def _sides(text: str | None, facts: Mapping[str, object]) -> tuple[int, ...]:
    """The shape of a sample, from the user or from the file."""
    if text is None and "shape" not in facts:
        raise ModelError("the file does not say the shape of its samples; give it as --shape 3x32x32.")
    said = text.split("x") if text else facts["shape"]
    listed = said if isinstance(said, list) else []
    sides = [int(side) for side in listed if str(side).isdecimal() and len(str(side)) < 10]
    if not sides or len(sides) != len(listed) or min(sides) < 1:
        raise ModelError(f"a shape reads like 3x32x32. Received: {text or said!r:.80}.")
    return tuple(sides)
