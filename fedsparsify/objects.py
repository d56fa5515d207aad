"""Objects where settings take names: what stands for them in config files, and the objects themselves.

In: a factory, a loss, a data set … that was given in Python. Out: `module:attribute`, if the object can be imported by
that name; otherwise an `ObjectName`, which only this process can resolve.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .data import Dataset, as_dataset
from .data.inputs import arrays_of
from .errors import ConfigError
from .plugins import ObjectName, describes_object


def with_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run with names in place of objects."""
    made = dict(table)
    if "data" in made:
        made["data"] = data_name(made["data"])
    if made.get("network") is not None:
        made["network"] = network_name(made["network"])
    for name in ("loss", "split"):
        if callable(made.get(name)):
            made[name] = name_of(made[name])
    if (metrics := made.get("metrics")) is not None:
        made["metrics"] = _metric_names(metrics)
    return made


def _metric_names(given: Any) -> Any:
    """Names of metrics: one or several, of which each text may hold several (`r2,mae`)."""
    several = given if isinstance(given, list | tuple) else [given]
    if not all(isinstance(one, str) or callable(one) for one in several):
        return given
    names = [name_of(one) if callable(one) else one for one in several]
    words = [[name] if describes_object(name) else name.split(",") for name in names]
    return tuple(word if describes_object(word) else word.strip() for some in words for word in some if word.strip())


def name_of(value: Any) -> str:
    """`module:attribute` of something that can be imported under this name; otherwise a description of it."""
    inner = value.func if isinstance(value, partial) else value
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    module, attribute = str(kind.__module__), str(kind.__qualname__)
    if inner is value and kind is value and module != "__main__" and _imported(module, attribute) is value:
        return f"{module}:{attribute}"
    return ObjectName(f"<{type(value).__name__} {module}:{attribute}>", value)


def _imported(module: str, attribute: str) -> object:
    """What other processes would find under that name; None: nothing."""
    try:
        found: object = importlib.import_module(module)
    except Exception:  # a module that exists in this process alone
        return None
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found


def network_name(value: Any) -> str:
    """The name of a factory, or of a module, of which every network of the run is a copy."""
    if isinstance(value, str):
        return value
    torch = sys.modules.get("torch")  # without it there are no modules
    if torch is not None and isinstance(value, torch.nn.Module):
        kept = copy.deepcopy(value)
        kind = type(value)
        state = [(name, tensor.detach().cpu().numpy()) for name, tensor in kept.state_dict().items()]
        told = f"<{kind.__module__}:{kind.__qualname__}, {_fingerprint(state)}>"
        return ObjectName(told, _Copies(kept), exact=True)
    if not callable(value):
        raise ConfigError(
            f"network must be a name, a torch.nn.Module or a function that makes one. Received: {type(value).__name__}."
        )
    return name_of(value)


class _Copies:
    """A factory of copies of one module."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(self) -> Any:
        return copy.deepcopy(self._module)


def data_name(value: Any) -> str:
    """The name of a data set: of a function that loads it, or of what was given, with a hash of its content."""
    if isinstance(value, str):
        return value
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return name_of(value)
    dataset = as_dataset(value, value.name if isinstance(value, Dataset) else type(value).__name__)
    parts = [
        *((f"x_train {place}", array) for place, array in enumerate(arrays_of(dataset.x_train))),
        *((f"x_test {place}", array) for place, array in enumerate(arrays_of(dataset.x_test))),
        *(("y_train", dataset.y_train), ("y_test", dataset.y_test)),
        *([("clients", np.asarray(dataset.clients, str))] if dataset.clients is not None else []),
        (f"{dataset.preprocessing} {dataset.labels} {dataset.targets}", np.zeros(0)),
    ]
    counts = f"{len(dataset.y_train):,} + {len(dataset.y_test):,} samples"
    return ObjectName(f"<Dataset {dataset.name}: {counts}, {_fingerprint(parts)}>", dataset, exact=True)


def _fingerprint(parts: list[tuple[str, Any]]) -> str:
    """A hash of named arrays."""
    found = hashlib.blake2b(digest_size=8)
    for name, array in parts:
        found.update(f"{name} {array.dtype} {array.shape} ".encode())
        found.update(
            np.ascontiguousarray(array).tobytes() if array.dtype.hasobject else np.ascontiguousarray(array).data
        )
    return found.hexdigest()
