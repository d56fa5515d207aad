"""Model files in other formats: one file per format, which imports the library of that format."""

from __future__ import annotations

from pathlib import Path

from ..errors import ConfigError
from ..wire.artefact import load_graph, read

FORMATS = {"safetensors": ".safetensors", "onnx": ".onnx", "torch": ".pt"}


def export(source: Path, to: str, out: Path | None = None) -> Path:
    """Write a model file in another format.

    Args:
        source: a model file.
        to: a name in `FORMATS`.
        out: where to write it; None: beside the model.

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
