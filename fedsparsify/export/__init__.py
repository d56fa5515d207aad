"""Model files in other formats: one file per format, which imports the library of that format."""

from __future__ import annotations

from pathlib import Path

from ..errors import ConfigError
from ..wire.artefact import load_graph, read

FORMATS = {"safetensors": ".safetensors", "onnx": ".onnx", "torch": ".pt"}


def export(source: Path, to: str, out: Path | None = None) -> Path:
    """Write the model in `source` in another format, beside it or to `out`; returns the path."""
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
