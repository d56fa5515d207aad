"""Model files in other formats: one file per format, which imports the library of that format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..model import Floats
from ..wire.artefact import load_graph, read

if TYPE_CHECKING:
    from ..inference.int8.calibration import LayerError

FORMATS = {"safetensors": ".safetensors", "onnx": ".onnx", "torch": ".pt", "int8": ".int8.fsz", "plan": ".fsplan"}


def export(source: Path, to: str, out: Path | None = None, samples: Floats | None = None) -> Path:
    """Write a model file in another format.

    Args:
        source: a model file.
        to: a name in `FORMATS`.
        out: where to write it; None: beside the model.
        samples: for `int8`, some samples as the network takes them, by which values are calibrated.

    Returns:
        The path of the new file.

    Raises:
        ConfigError: if there is no such format.
        WireError: if the file is damaged, or does not say what its network computes and the format needs that.

    Example:
        >>> from pathlib import Path
        >>> from fedsparsify import RunConfig, run
        >>> from fedsparsify.export import export
        >>> run(RunConfig(rounds=1, epochs=1, clients=2)).save("model.fsz")
        >>> export(Path("model.fsz"), "onnx").name
        'model.onnx'
    """
    if to not in FORMATS:
        raise ConfigError(f"a model is exported to one of {', '.join(FORMATS)}. Received: {to!r}.")
    if to == "int8":
        return export_int8(source, out, samples)[0]
    if to == "plan":
        raise ConfigError("a plan is for batches of one shape: call export_plan with it.")
    target = out or source.with_suffix(FORMATS[to])
    model, facts, _ = read(source)
    if to == "onnx":
        from .onnx import write_onnx

        write_onnx(target, model, facts, load_graph(source))
    elif to == "torch":
        from .torch import write_torch

        write_torch(target, model, facts)
    else:
        from .safetensors import write_safetensors

        write_safetensors(target, model, facts)
    return target


def export_plan(source: Path, shape: tuple[int, ...], out: Path | None = None) -> Path:
    """Write a plan: a network made ready for batches of one shape, which a C program runs without Python.

    Args:
        source: a model file.
        shape: of the batches, (images, …).
        out: where to write it; None: beside the model.

    Returns:
        The path of the new file.

    Raises:
        ModelError: if the network cannot be run, or there are no kernels for a whole level of processors.
    """
    from .plan import write_plan

    target = out or source.with_suffix(FORMATS["plan"])
    write_plan(target, source, shape)
    return target


def export_int8(source: Path, out: Path | None, samples: Floats | None) -> tuple[Path, list[LayerError]]:
    """Write a model file with int8 weights; returns the path, and what was measured of each layer."""
    if samples is None:
        raise ConfigError("an int8 model is calibrated by samples: give some, as the network takes them.")
    from .int8 import write_int8

    target = out or source.with_suffix(FORMATS["int8"])
    model, facts, _ = read(source)
    return target, write_int8(target, model, facts, load_graph(source), samples)
