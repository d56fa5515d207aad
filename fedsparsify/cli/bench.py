"""The commands that run model files: infer, bench."""

from __future__ import annotations

import re
from fractions import Fraction
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from rich.table import Table

from ..data.datasets import Preprocessing
from ..errors import DataError, ModelError
from ..model import Floats
from ..text import plain
from ..wire.artefact import load, load_facts, load_graph
from .screen import Screen

FILE = click.Path(path_type=Path)
UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, such as 2GB (10⁹), 1.5GiB (2³⁰) or 800000000."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes that a text stands for."""
        found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?\s*", str(value), re.IGNORECASE)
        if found is None or (found[3] and not found[2]):
            self.fail(f"a size reads like 2GB, 500MB or 1.5GiB. Received: {str(value)[:80]!r}.", param, ctx)
        made = int(Fraction(found[1]) * (1024 if found[3] else 1000) ** UNITS[found[2].upper()])
        if made < 1:
            self.fail(f"a size is at least one byte. Received: {str(value)[:80]!r}.", param, ctx)
        return made


MEMORY = click.option(
    "--max-memory",
    type=Size(),
    help="memory that the engine may take, such as 2GB  [default: half of the machine's]",
)


@click.command()
@click.argument("model", type=FILE)
@click.argument("images", type=FILE)
@click.option("--out", type=FILE, help="write the logits to this .npy file instead of printing classes")
@click.option("--threads", type=click.IntRange(1), help="threads to use  [default: all]")
@MEMORY
def infer(model: Path, images: Path, out: Path | None, threads: int | None, max_memory: int | None) -> None:
    """Run a sparse model over images (.npy: floats as the network takes them, or raw bytes) and print their classes."""
    from ..inference import Engine

    facts = load_facts(model)
    engine = Engine(model, threads, max_memory=max_memory)
    logits = engine.run(_images(images, facts))
    report = Screen(stderr=True)
    times = f"loaded in {engine.load_seconds:.2f} s, ran in {engine.first_run_seconds:.2f} s (with compilation)"
    report.print(f"{len(logits):,} images; {times}", soft_wrap=True)
    if out:
        np.save(out, logits)
        report.print(f"Logits: {out}", soft_wrap=True)
        return
    labels = facts.get("labels")
    names = [plain(label) for label in labels] if isinstance(labels, list) else []
    for best in logits.reshape(len(logits), -1).argmax(1):
        click.echo(names[best] if best < len(names) else best)


def _images(path: Path, facts: dict[str, Any]) -> Floats:
    """Samples as the network takes them; raw bytes are prepared as in training."""
    try:
        images = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a .npy file of images: {error}") from error
    if not isinstance(images, np.ndarray) or images.ndim < 2 or images.dtype.kind not in "fiub":
        raise DataError(f"{path} must hold one array of numbers, (images, …). Received: {_described(images)}.")
    if images.dtype == np.uint8 and "preprocessing" in facts:
        return _preprocessing(facts["preprocessing"], images.shape[1])(images)
    return images.astype(np.float32)


def _preprocessing(said: Any, channels: int) -> Preprocessing:
    """What the file says that samples are divided and scaled by."""
    match said:
        case {"divisor": int() | float() as divisor, "mean": list() as mean, "std": list() as std}:
            numbers = [divisor, *mean, *std]
            known = all(isinstance(number, int | float) and abs(number) < 1e38 for number in numbers)
            if known and all([divisor, *std]) and len(mean) == len(std) in (0, 1, channels):
                return Preprocessing(float(divisor), tuple(mean), tuple(std))
    raise ModelError(
        "the file's preprocessing must be a divisor and, for each channel, mean and std, none of them 0 but the mean. "
        f"Received: {said!r:.80}. Give prepared floats instead of bytes."
    )


def _described(images: Any) -> str:
    return f"shape {images.shape} of {images.dtype}" if isinstance(images, np.ndarray) else type(images).__name__


@click.command()
@click.argument("model", type=FILE)
@click.option("--batch", default=128, show_default=True, type=click.IntRange(1), help="images a batch")
@click.option("--seconds", default=60.0, show_default=True, help="of serving, for each engine")
@click.option("--warmup", default=10.0, show_default=True, help="seconds before that")
@click.option("--streams", default=1, show_default=True, type=click.IntRange(1), help="batches under way at a time")
@click.option("--threads", type=click.IntRange(1), help="threads a batch  [default: all]")
@click.option("--shape", help="of a sample, such as 3x32x32, where the file does not say")
@MEMORY
def bench(
    model: Path,
    batch: int,
    seconds: float,
    warmup: float,
    streams: int,
    threads: int | None,
    shape: str | None,
    max_memory: int | None,
) -> None:
    """Time a sparse model by the paper's protocol, beside the dense model on every other engine that is installed.

    Engines take turns of a second. The paper: batch 128 (FashionMNIST 32), 60 seconds after 10 of warm-up.
    """
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
    engines: dict[str, Any] = {"fedsparsify": engine.run}
    console = Screen()
    with TemporaryDirectory() as folder:
        subject = Subject(model, Path(folder) / "model.onnx", batch, engine.threads)
        try:
            write_fixed_onnx(subject.onnx, load(model), load_graph(model), sides, batch)
        except ImportError:
            console.print("onnx is not installed, so that only PyTorch can be compared.")
        for name, make in installed().items():
            if subject.onnx.exists() or name == "pytorch":
                engines[name] = make(subject)
    timings = compare(engines, samples, seconds, warmup, streams)
    table = Table("engine", "latency, ms", "iterations", "items/s", "fedsparsify is")
    for name, timing in timings.items():
        faster = f"{timing.latency_ms / timings['fedsparsify'].latency_ms:.2f} × as fast"
        row = f"{timing.latency_ms:.3f}", f"{timing.iterations:,}", f"{timing.items_per_second:,.0f}"
        table.add_row(name, *row, "" if name == "fedsparsify" else faster)
    console.print(table)
    start = f"loaded in {engine.load_seconds:.2f} s, first batch in {engine.first_run_seconds:.2f} s"
    console.print(f"fedsparsify: {start}; {engine.threads} threads, {engine.lanes} lanes")


def _sides(text: str | None, facts: dict[str, Any]) -> tuple[int, ...]:
    """The shape of a sample, as the user or the file says it."""
    if text is None and "shape" not in facts:
        raise ModelError("the file does not say the shape of its samples; give it as --shape 3x32x32.")
    said = text.split("x") if text else facts["shape"]
    sides = (
        [int(side) for side in said if str(side).isdecimal() and len(str(side)) < 10] if isinstance(said, list) else []
    )
    if not sides or len(sides) != len(said) or min(sides) < 1:
        raise ModelError(f"a shape reads like 3x32x32. Received: {text or said!r:.80}.")
    return tuple(sides)
