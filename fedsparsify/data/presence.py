"""Whether training data are there, without reading them: a node is told before it joins."""

from __future__ import annotations

import zipfile

from ..errors import DataError
from ..plugins import load_named
from .datasets import DATASETS
from .load import check_known


def check_present(name: str) -> None:
    """Refuse data that are not there, without reading them."""
    if not name.endswith(".npz"):
        check_known(name)
        load_named(name, DATASETS, "data set")
        return
    try:
        with zipfile.ZipFile(name) as file:
            parts = {part.removesuffix(".npy") for part in file.namelist()}
    except FileNotFoundError:
        raise DataError(f"there is no file {name}.") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{name} cannot be read as an .npz: {error}") from error
    if missing := {"x_train", "y_train"} - parts:
        raise DataError(f"{name} must hold x_train and y_train. Missing: {', '.join(sorted(missing))}.")
