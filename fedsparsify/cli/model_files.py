"""Model files as commands take them: our own, or ONNX models of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import ModelError
from ..wire.artefact import save

ONNX_SUFFIX = ".onnx"


@contextmanager
def model_file(path: Path) -> Iterator[Path]:
    """The file itself; an ONNX model is read and handed on as a file of ours, which is removed afterwards."""
    if path.suffix.lower() != ONNX_SUFFIX:
        yield path
        return
    try:
        from ..export.onnx_import import read_onnx
    except ImportError as error:
        raise ModelError(f"{path} is an ONNX model; reading it takes: pip install onnx.") from error
    found = read_onnx(path)
    facts = {"graph": [node.to_json() for node in found.graph], "shape": list(found.shape)}
    with TemporaryDirectory() as folder:
        made = Path(folder) / "model.fsz"
        save(made, found.model, facts)
        yield made
