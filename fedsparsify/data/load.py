"""A data set by name: one of ours, a file, or what a function of a user's returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..notices import notice
from ..plugins import ObjectName, call_named, describes_object, load_named
from ..preprocessing import Preprocessing
from ..tasks import Targets
from .convert import halves, is_pairs, is_table, parts_of
from .dataset import PARTS, Dataset, channels_last, check_first_class, raw_inputs
from .datasets import DATASETS
from .inputs import arrays_of, mapped

CLIENT = "client"


def load_dataset(name: str, targets: Targets | None = None) -> Dataset:
    """Load a data set by name.

    Args:
        name: `digits`, `fashion-mnist`, `cifar10` or `cifar100`; the path of an `.npz` file with x_train, y_train,
            x_test and y_test; or `module:function` of your own, which returns these four arrays, a `Dataset`, a
            `DatasetDict` of Hugging Face, or a training and a test set of PyTorch. The test half may be absent where
            clients evaluate.
        targets: `classes`, `labels` or `values`: what y_train holds. None: integers are classes, floats are values.

    Returns:
        A `Dataset`: samples `x_train`, `x_test` and targets `y_train`, `y_test`. Bytes of your own files are divided
        by 255; other integers stay integers.

    Raises:
        ConfigError: if there is no such data set, or your function fails.
        DataError: if files are absent or damaged, or the arrays do not fit together.

    Example:
        >>> from fedsparsify import load_dataset
        >>> load_dataset("digits")
        Dataset('digits', 1,442 + 355 samples of shape (1, 8, 8), 10 classes)
    """
    if isinstance(name, ObjectName) and isinstance(name.value, Dataset):
        return name.value.with_targets(targets)
    if name in DATASETS:
        return DATASETS[name].load().with_targets(targets)
    return as_dataset(_made(name), name, targets)


def load_samples(name: str, targets: Targets | None = None) -> Dataset:
    """The training half of a data set, which is also its test half. Your own needs no test half."""
    made = DATASETS[name].load() if name in DATASETS else _made(name, PARTS[:2])
    if isinstance(made, Dataset):
        made = made.with_targets(targets)
        return replace(made, x_test=made.x_train, y_test=made.y_train)
    parts = _parts(made, name, PARTS[:2])
    return _own(name, {**parts, "x_test": parts["x_train"], "y_test": parts["y_train"]}, targets)


def as_dataset(made: object, name: str = "data", targets: Targets | None = None) -> Dataset:
    """A `Dataset` from what users have: arrays, or data sets of Hugging Face or PyTorch.

    Args:
        made: a `Dataset`; a dictionary with x_train, y_train, x_test, y_test and, if you like, client; these four in a
            tuple; a `DatasetDict` of Hugging Face with a training and a test split; or a pair of data sets of PyTorch
            (or Hugging Face), for training and for testing.
        name: for messages.
        targets: `classes`, `labels` or `values`: what the targets are. None: integers are classes, floats are values.

    Returns:
        A `Dataset`. Bytes are divided by 255, and its preprocessing says so.

    Raises:
        DataError: if it is none of these, or its parts do not fit together.

    Example:
        >>> import numpy as np
        >>> from fedsparsify.data import as_dataset
        >>> x, y = np.zeros((4, 3)), np.array([0, 1, 0, 1])
        >>> as_dataset((x, y, x, y), "zeros")
        Dataset('zeros', 4 + 4 samples of shape (3,), 2 classes)
    """
    found = made if isinstance(made, Dataset) else _own(name, _parts(made, name, PARTS), targets)
    found = found.with_targets(targets)
    check_first_class(found)
    if hint := channels_last(found.shape):
        notice(f"{name}: {hint}")
    return found


def check_known(name: str) -> None:
    """Refuse a name that cannot be a data set, before anything is loaded."""
    if name not in DATASETS and not name.endswith(".npz") and ":" not in name and not describes_object(name):
        load_named(name, DATASETS, "data set")


def _made(name: str, needed: tuple[str, ...] = PARTS) -> object:
    """The arrays of a file, or the value of a user's function, or a data set that Python gave."""
    if isinstance(name, ObjectName) and isinstance(name.value, Dataset):
        return name.value
    if name.endswith(".npz"):
        return _read_npz(Path(name), needed)
    return call_named(load_named(name, DATASETS, "data set"), name, "data set")


def _read_npz(path: Path, needed: tuple[str, ...]) -> dict[str, Any]:
    """The arrays of a file; `x_train.NAME` is one of several inputs."""
    found: dict[str, Any] = {}
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            for key in file.files:
                part, dot, inner = key.partition(".")
                if part not in (*needed, CLIENT):
                    continue
                if dot:
                    found.setdefault(part, {})[inner] = file[key]
                else:
                    found[part] = file[key]
    except FileNotFoundError:
        raise DataError(f"there is no file {path}.") from None
    except (OSError, ValueError, EOFError, BadZipFile, TypeError) as error:
        raise DataError(f"{path} cannot be read as an .npz of plain arrays: {error}") from error
    if missing := _missing(needed, found):
        raise DataError(f"{path} must hold {', '.join(needed)}. Missing: {', '.join(missing)}.")
    return found


def _parts(made: object, name: str, needed: tuple[str, ...]) -> dict[str, Any]:
    """x_train, y_train, … of what a user's function returned."""
    if isinstance(made, Mapping) and not {*made} & {*PARTS}:
        made = halves(made, name, test=len(needed) > 2 and len(made) > 1)
    elif is_table(made) or is_pairs(made):
        made = halves({"train": made}, name, test=False)
    elif isinstance(made, tuple | list) and len(made) == 2 and all(is_table(one) or is_pairs(one) for one in made):
        made = parts_of(made[0], name, "train") | parts_of(made[1], name, "test")
    elif isinstance(made, tuple | list) and len(made) in (2, len(PARTS)):
        made = dict(zip(PARTS, made, strict=False))
    if not isinstance(made, Mapping):
        raise DataError(
            f"{name} must give {', '.join(needed)} as arrays, or data sets of Hugging Face or PyTorch for training and "
            f"for testing. Received: {type(made).__name__}{_length(made)}."
        )
    if missing := _missing(needed, made):
        raise DataError(f"{name} must give {', '.join(needed)}. Missing: {', '.join(missing)}.")
    return dict(made)


def _missing(needed: tuple[str, ...], made: Mapping[str, Any]) -> list[str]:
    """The parts that are needed and absent. Both test parts may be absent: clients can evaluate."""
    if not {*PARTS[2:]} & made.keys():
        needed = PARTS[:2]
    return [part for part in needed if part not in made]


def _length(made: object) -> str:
    return f" of {len(made)}" if isinstance(made, tuple | list) else ""


def _own(name: str, parts: Mapping[str, Any], targets: Targets | None) -> Dataset:
    """A data set of a user's arrays: bytes are divided by 255, other numbers stay as they are."""
    if "y_test" not in parts:
        x = raw_inputs(parts["x_train"], f"{name}: x_train")
        parts = {**parts, "x_test": mapped(x, lambda array: array[:0]), "y_test": np.asarray(parts["y_train"])[:0]}
    raw = {part: raw_inputs(parts[part], f"{name}: {part}") for part in ("x_train", "x_test")}
    bytes_in = {part: [array.dtype == np.uint8 for array in arrays_of(x)] for part, x in raw.items()}
    if bytes_in["x_train"] != bytes_in["x_test"]:
        types = [", ".join(str(array.dtype) for array in arrays_of(x)) for x in raw.values()]
        raise DataError(
            f"{name}: x_train and x_test must both be bytes, which are divided by 255, or neither. "
            f"Received: {types[0]} and {types[1]}."
        )
    scale = Preprocessing(255 if any(bytes_in["x_train"]) else 1)
    x_train, x_test = (mapped(raw[part], _scaled) for part in raw)
    both = x_train, parts["y_train"], x_test, parts["y_test"]
    rest: dict[str, Any] = {"targets": targets, "clients": parts.get(CLIENT)}
    return Dataset(name, *both, scale, tuple(map(str, parts.get("labels", ()))), **rest)


def _scaled(array: NDArray[Any]) -> NDArray[Any]:
    return Preprocessing(255)(array) if array.dtype == np.uint8 else array
