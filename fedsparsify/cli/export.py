"""`fedsparsify export`: a model file in another format."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import ConfigError, DataError
from ..export import FORMATS, export, export_int8, export_plan
from ..model import Floats
from ..wire.artefact import load_facts
from .flags import PATH
from .infer import read_images
from .screen import Screen


@click.command("export")
@click.argument("model", type=PATH)
@click.option("--to", required=True, type=click.Choice(list(FORMATS)), help="the other format")
@click.option("--out", type=PATH, help="where to write it  [default: beside the model]")
@click.option(
    "--samples", type=PATH, help="for int8: a .npy file of samples to calibrate with  [default: training data]"
)
@click.option("--shape", help="for plan: the shape of a batch, such as 1x3x32x32")
def command(model: Path, to: str, out: Path | None, samples: Path | None, shape: str | None) -> None:
    """Write a model file in another format, with dense weights.

    int8 is a model file again, sparse, with int8 weights: `infer` and `bench` take it, and compute in whole numbers.
    A plan is a sparse network made ready for batches of one shape, for C programs on Linux on x86-64.
    """
    screen = Screen()
    if to != "int8":
        written = export_plan(model, _sides(shape), out) if to == "plan" else export(model, to, out)
        screen.print(f"{written}: {written.stat().st_size:,} bytes", soft_wrap=True)
        return
    written, layers = export_int8(model, out, _samples(model, samples))
    for layer in layers:
        if layer.reason:
            screen.print(f"{layer.name} stays in float: {layer.reason}", soft_wrap=True)
    errors = [layer.error for layer in layers if layer.error is not None and not layer.reason]
    worst = f", which add an error of at most {100 * max(errors):.2f} % to that of int8 weights" if errors else ""
    screen.print(f"in whole numbers: {len(errors)} layers with weights{worst}", soft_wrap=True)
    size, before = written.stat().st_size, model.stat().st_size
    screen.print(f"{written}: {size:,} bytes, {size / before:.2f} of {model.name}", soft_wrap=True)


def _sides(shape: str | None) -> tuple[int, ...]:
    """The numbers of a shape such as 1x3x32x32."""
    sides = (shape or "").split("x")
    if len(sides) < 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise ConfigError(f"a plan needs --shape, the sides of a batch, such as 1x3x32x32. Received: {shape!r}.")
    return tuple(map(int, sides))


def _samples(model: Path, samples: Path | None) -> Floats:
    """Samples as the network takes them: the user's, or some of the training data."""
    import numpy as np

    from ..data import load_samples
    from ..export.int8 import SAMPLES

    facts = load_facts(model)
    if samples is not None:
        return read_images(samples, facts)
    name = facts.get("data")
    if not isinstance(name, str):
        raise DataError("the file does not name its data set; give --samples, a .npy file.")
    x = load_samples(name).x_train
    if not isinstance(x, np.ndarray):
        raise DataError("a network of several inputs is not computed in whole numbers.")
    chosen = np.random.default_rng(0).permutation(len(x))[:SAMPLES]
    return np.asarray(x[np.sort(chosen)], np.float32)
