"""One file for a model: its layout, its mask, the values that survive, and facts about it.

An interim container (`.npz` of plain arrays, no pickle); the wire format will take its place behind the same verbs.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FedSparsifyError, WireError
from ..model import Layout, SparseModel, TensorSpec
from .files import atomic


def save(path: str | Path, model: SparseModel, facts: Mapping[str, Any] | None = None) -> None:
    """Write a model to one file, atomically; `facts` are JSON values that `load_facts` gives back."""
    write(Path(path), model, facts or {}, {})


def load(path: str | Path) -> SparseModel:
    """Read a model back, to the bit."""
    return read(Path(path))[0]


def load_facts(path: str | Path) -> dict[str, Any]:
    """What the file says about its model."""
    return read(Path(path))[1]


def write(path: Path, model: SparseModel, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """`save`, with further arrays beside the model."""
    header = {
        "tensors": [[spec.name, list(spec.shape)] for spec in model.layout.tensors],
        "statistics": [[spec.name, list(spec.shape)] for spec in model.layout.statistics],
        "facts": dict(facts),
    }
    kept = np.concatenate([model.trainable_weights[model.mask], model.weights[model.layout.trainable :]])
    with atomic(path) as file:
        np.savez(
            file,
            allow_pickle=False,
            header=np.frombuffer(json.dumps(header).encode(), np.uint8),
            mask=np.packbits(model.mask),
            values=kept,
            **arrays,
        )


def read(path: Path) -> tuple[SparseModel, dict[str, Any], dict[str, np.ndarray]]:
    """Model, facts and further arrays of a file."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop("header").tobytes())
        layout = Layout(
            tuple(TensorSpec(name, tuple(shape)) for name, shape in header["tensors"]),
            tuple(TensorSpec(name, tuple(shape)) for name, shape in header["statistics"]),
        )
        mask = np.unpackbits(arrays.pop("mask"), count=layout.trainable).astype(np.bool_)
        values = arrays.pop("values")
        weights = np.zeros(layout.total, np.float32)
        weights[: layout.trainable][mask] = values[: int(mask.sum())]
        weights[layout.trainable :] = values[int(mask.sum()) :]
        return SparseModel(layout, weights, mask), header["facts"], arrays
    except FileNotFoundError:
        raise WireError(f"there is no file {path}.") from None
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        zipfile.BadZipFile,
        FedSparsifyError,
    ) as error:
        raise WireError(f"{path} is not a model file, or is damaged: {error}") from error
