"""Arrays from data sets of Hugging Face and PyTorch.

Neither library is imported here: a data set is known by what it offers. In: their objects. Out: x and y as arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..notices import notice

TARGETS = ("label", "labels", "target", "targets", "y")  # names of a target's column
CLIENT = "client"
TEST = ("test", "validation")


def is_table(made: object) -> bool:
    """Whether it is a data set of Hugging Face."""
    return hasattr(made, "column_names") and hasattr(made, "with_format")


def is_pairs(made: object) -> bool:
    """Whether it is a data set of PyTorch: samples and targets by number."""
    if isinstance(made, Mapping | tuple | list | str) or is_table(made) or hasattr(made, "dtype"):
        return False
    return hasattr(made, "__getitem__") and (hasattr(made, "__len__") or hasattr(made, "__iter__"))


SPLITTING = (
    "A test set is split off by data.train_test_split(test_size=0.2, seed=0) of Hugging Face, or random_split(data, "
    "[0.8, 0.2]) of PyTorch."
)


def halves(made: Mapping[str, Any], name: str, test: bool) -> dict[str, Any]:
    """x_train, y_train and, with `test`, x_test and y_test of a dictionary of splits."""
    found = [split for split in made if is_table(made[split]) or is_pairs(made[split])]
    if "train" not in found:
        raise DataError(f"{name} must have a split 'train'. Received: {', '.join(map(str, made)) or 'nothing'}.")
    parts = parts_of(made["train"], name, "train")
    if not test:
        return parts
    split = next((one for one in TEST if one in found), None)
    if split is None:
        raise DataError(
            f"{name} has no test split: {', '.join(TEST)}. Received: {', '.join(map(str, made))}. {SPLITTING}"
        )
    if split != "test":
        notice(f"{name} has no split 'test'; models are evaluated on its split {split!r}.")
    return parts | parts_of(made[split], name, "test")


def parts_of(made: Any, name: str, half: str) -> dict[str, Any]:
    """`x_HALF`, `y_HALF` and what else a data set says."""
    found = _of_table(made, f"{name}, {half}") if is_table(made) else _of_pairs(made, f"{name}, {half}")
    named = {f"{key}_{half}" if key in ("x", "y") else key: value for key, value in found.items()}
    return named if half == "train" else {key: value for key, value in named.items() if key[1:2] == "_"}


def _of_table(table: Any, what: str) -> dict[str, Any]:
    """Columns of a data set of Hugging Face: one is the target, one may be the client, the rest are inputs."""
    if not hasattr(table, "__len__"):
        raise DataError(f"{what} is a stream: load it without streaming=True.")
    features = dict(table.features)
    targets = [column for column in table.column_names if column.lower() in TARGETS]
    if len(targets) != 1:
        raise DataError(
            f"{what} must have one column of targets, named {', '.join(TARGETS[:-1])} or y. "
            f"Received: {', '.join(table.column_names)}. Rename it with data.rename_column(…)."
        )
    columns = table.with_format("numpy")[:]
    texts = [one for one in features if getattr(features[one], "dtype", "") in ("string", "large_string")]
    inputs = [one for one in table.column_names if one not in (targets[0], CLIENT) and one not in texts]
    if not inputs:
        raise DataError(
            f"{what} has no column of numbers to train on. Received: {', '.join(table.column_names)}. "
            f"Turn text into numbers first: data.map(tokenize)."
        )
    if left := [one for one in texts if one not in (targets[0], CLIENT)]:
        notice(f"{what}: text is not an input of a network; without {', '.join(left)}.")
    x = {one: _column(columns[one], features[one], f"{what}, column {one!r}") for one in inputs}
    found: dict[str, Any] = {"x": x if len(x) > 1 else x[inputs[0]]}
    found["y"] = _column(columns[targets[0]], features[targets[0]], f"{what}, column {targets[0]!r}")
    if names := getattr(features[targets[0]], "names", None):
        found["labels"] = tuple(names)
    if CLIENT in columns:
        found["client"] = np.asarray(columns[CLIENT])
    return found


def _column(values: Any, feature: object, what: str) -> NDArray[Any]:
    image = type(feature).__name__ == "Image"
    if isinstance(values, np.ndarray) and values.dtype != object:
        return _image(values) if image else values
    return _stacked([_image(np.asarray(value)[None])[0] if image else value for value in values], what)


def _of_pairs(data: Any, what: str) -> dict[str, Any]:
    """Samples and targets of a data set of PyTorch, read once from the first to the last."""
    tensors = getattr(data, "tensors", None)  # of a TensorDataset
    if isinstance(tensors, tuple) and len(tensors) > 1:
        *inputs, y = (np.asarray(tensor) for tensor in tensors)
        return {"x": inputs[0] if len(inputs) == 1 else tuple(inputs), "y": y}
    items = [data[number] for number in range(len(data))] if hasattr(data, "__len__") else list(data)
    if not items:
        raise DataError(f"{what} is empty.")
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        odd = next(item for item in items if not isinstance(item, tuple | list) or len(item) != 2)
        raise DataError(f"{what} must give pairs (sample, target). Received: {type(odd).__name__}{_count(odd)}.")
    first = items[0][0]
    x: Any
    if isinstance(first, Mapping):
        x = {key: _stacked([item[0][key] for item in items], f"{what}, {key!r}") for key in first}
    elif isinstance(first, tuple):
        x = tuple(_stacked([item[0][i] for item in items], f"{what}, input {i}") for i in range(len(first)))
    else:
        x = _stacked([item[0] for item in items], f"{what}, samples")
    return {"x": x, "y": _stacked([item[1] for item in items], f"{what}, targets")}


def _count(item: object) -> str:
    return f" of {len(item)}" if isinstance(item, tuple | list) else ""


def _stacked(values: list[Any], what: str) -> NDArray[Any]:
    """One array of equal ones; pictures of PIL become (channels, height, width)."""
    pictures = hasattr(values[0], "getbands")
    arrays = [_image(np.asarray(value)[None])[0] if pictures else np.asarray(value) for value in values]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise DataError(f"{what} differ in shape: {shapes[0]} and {shapes[-1]}. Pad, cut or resize them to one shape.")
    return np.stack(arrays)


def _image(pixels: NDArray[Any]) -> NDArray[Any]:
    """Pictures as PIL holds them, (n, height, width) or (n, height, width, channels), with their channels first."""
    return pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1) if pixels.ndim == 4 else pixels
