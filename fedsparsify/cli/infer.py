"""`fedsparsify infer`: a sparse model over images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import click
import numpy as np

from ..errors import DataError
from ..model import Floats
from ..preprocessing import Preprocessing
from ..text import plain
from ..wire.artefact import load_facts
from ..wire.files import atomic
from .flags import MAX_MEMORY, PATH
from .model_files import model_file
from .screen import Screen
from .units import duration


@click.command("infer")
@click.argument("model", type=PATH)
@click.argument("images", type=PATH)
@click.option("--out", type=PATH, help="write the logits to this .npy file instead of printing classes")
@click.option("--threads", type=click.IntRange(1), help="threads to use  [default: all]")
@MAX_MEMORY
def command(model: Path, images: Path, out: Path | None, threads: int | None, max_memory: int | None) -> None:
    """Run a sparse model over images and print their classes, labels or values.

    MODEL is a model.fsz, or an ONNX model of another tool.

    IMAGES is a .npy file: floats as the network takes them, or raw bytes, which are prepared as in training.
    """
    from ..inference import Engine

    with model_file(model) as file:
        facts = load_facts(file)
        engine = Engine(file, threads, max_memory=max_memory)
    logits = engine.run(read_images(images, facts))
    report = Screen(stderr=True)
    loaded, ran = duration(engine.load_seconds), duration(engine.first_run_seconds or 0.0)
    times = f"model and kernels loaded in {loaded}, planned and run in {ran}"
    report.print(f"{len(logits):,} images: {times}", soft_wrap=True)
    if out:
        with atomic(out) as file:
            np.save(file, logits)
        report.print(f"Logits: {out}", soft_wrap=True)
        return
    labels = facts.get("labels")
    names = [plain(label) for label in labels] if isinstance(labels, list) else []
    table = logits.reshape(len(logits), -1)
    if facts.get("targets") == "values":
        for row in table:
            click.echo(" ".join(f"{value:.6g}" for value in row))
        return
    if facts.get("targets") == "labels":
        for row in table:
            click.echo(", ".join(names[i] if i < len(names) else str(i) for i in np.flatnonzero(row > 0)) or "-")
        return
    for best in table.argmax(1):
        click.echo(names[best] if best < len(names) else best)


def read_images(path: Path, facts: Mapping[str, object]) -> Floats:
    """Samples as the network takes them; raw bytes are preprocessed as in training."""
    try:
        with path.open("rb") as file:
            images = np.load(file, allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} is not a file of numbers as numpy.save writes it, or is cut off.") from error
    if not isinstance(images, np.ndarray) or images.ndim < 2 or images.dtype.kind not in "fiub":
        raise DataError(f"{path} must hold one array of numbers, (images, …). Received: {_described(images)}.")
    if images.dtype == np.uint8 and "preprocessing" in facts:
        return Preprocessing.read(facts["preprocessing"], images.shape[1])(images)
    return images.astype(np.float32)


def _described(images: object) -> str:
    return f"shape {images.shape} of {images.dtype}" if isinstance(images, np.ndarray) else type(images).__name__
