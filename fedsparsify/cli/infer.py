"""`fedsparsify infer`: a sparse model over images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
import numpy as np

from ..data.datasets import Preprocessing
from ..errors import DataError, ModelError
from ..model import Floats
from ..text import plain
from ..wire.artefact import load_facts
from .flags import MAX_MEMORY, PATH
from .screen import Screen


@click.command("infer")
@click.argument("model", type=PATH)
@click.argument("images", type=PATH)
@click.option("--out", type=PATH, help="write the logits to this .npy file instead of printing classes")
@click.option("--threads", type=click.IntRange(1), help="threads to use  [default: all]")
@MAX_MEMORY
def command(model: Path, images: Path, out: Path | None, threads: int | None, max_memory: int | None) -> None:
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


def _images(path: Path, facts: Mapping[str, object]) -> Floats:
    """Samples as the network takes them; raw bytes are preprocessed as in training."""
    try:
        images = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a .npy file of images: {error}") from error
    if not isinstance(images, np.ndarray) or images.ndim < 2 or images.dtype.kind not in "fiub":
        raise DataError(f"{path} must hold one array of numbers, (images, …). Received: {_described(images)}.")
    if images.dtype == np.uint8 and "preprocessing" in facts:
        return _preprocessing(facts["preprocessing"], images.shape[1])(images)
    return images.astype(np.float32)


def _preprocessing(said: object, channels: int) -> Preprocessing:
    """The preprocessing that a file states, checked."""
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


def _described(images: object) -> str:
    return f"shape {images.shape} of {images.dtype}" if isinstance(images, np.ndarray) else type(images).__name__
