"""What a server knows of the data: test samples, or the shape of a sample and the number of classes alone.

In: a run's config. Out: a `Dataset` for building, checking and tracing the network. Where the server has no samples,
noise stands for them; nothing is ever trained or evaluated on it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config import CLIENTS, RunConfig
from ...data import Dataset, as_dataset
from ...errors import DataError
from ...model import Floats
from ...tasks import targets_of
from ..prepared import load_for, prepared


def server_dataset(config: RunConfig) -> Dataset:
    """The data set of a server. It needs no training samples, and no test samples where clients evaluate."""
    if config.data == CLIENTS or (config.shape and config.classes and config.evaluate == "clients"):
        return stand_in(config)
    path = Path(config.data)
    if path.suffix == ".npz" and not path.exists():
        raise DataError(
            f'there is no file {path}. A server without samples has data = "{CLIENTS}", shape = [1, 28, 28], say, and '
            f"classes = 10."
        )
    if path.suffix != ".npz" or "x_train.npy" in _members(path):
        return load_for(config)
    return prepared(config, _of_tests(config, path))


def stand_in(config: RunConfig) -> Dataset:
    """Noise of the declared shape, with targets as the loss takes them, and no test samples."""
    count, rng = max(4, config.batch_size), np.random.default_rng(config.seed)
    x: Floats = rng.standard_normal((count, *config.shape), np.float32)
    targets = targets_of(config.loss) or "classes"
    y: NDArray[Any] = rng.integers(0, 2, (count, config.classes)).astype(np.float32)
    if targets == "classes":
        y = np.zeros(count, np.int64)
        y[0] = config.classes - 1
    return Dataset(config.data, x, y, x[:0], y[:0], targets=targets)


def _of_tests(config: RunConfig, path: Path) -> Dataset:
    """A data set of test samples alone, for a file that holds no others."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            x, y = file["x_test"], file["y_test"]
    except KeyError as error:
        raise DataError(f"{path} must hold x_test and y_test. Missing: {error.args[0].split()[0]}.") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as an .npz of plain arrays: {error}") from error
    if not x.ndim or not len(x) or y.shape[:1] != (len(x),):
        raise DataError(f"{path}: x_test must be (n, …) and y_test (n, …), n > 0. Received: {x.shape} and {y.shape}.")
    x_train, y_train = x, y
    if config.classes and y.ndim == 1 and y.dtype.kind in "iu":  # one more sample, of the last class
        x_train, y_train = np.concatenate([x[:1], x]), np.concatenate([[config.classes - 1], y]).astype(y.dtype)
    parts = {"x_train": x_train, "y_train": y_train, "x_test": x, "y_test": y}
    return as_dataset(parts, config.data, targets_of(config.loss))


def _members(path: Path) -> set[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return set(file.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as an .npz of plain arrays: {error}") from error
