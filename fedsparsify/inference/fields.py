"""Fields of a program's rows, as operations.OPERATION names them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..model import Floats
from .layout.storage import Place


def affine_of(affine: tuple[Floats, Floats] | None, first: int, last: int) -> list[Floats]:
    """Scale and shift of some channels."""
    return [part[first:last] for part in affine or (np.ones(last, np.float32), np.zeros(last, np.float32))]


def target_of(place: Place) -> dict[str, Any]:
    """The fields of a row that writes a value."""
    rows, columns = place.block
    ends = {"target": place.origin, "target_channel": place.channel, "target_row": place.row}
    return {**ends, "rows": rows, "columns": columns}


def source_of(place: Place) -> dict[str, Any]:
    """The fields of a row that reads a value."""
    ends = {"source": place.origin, "source_channel": place.channel, "source_row": place.row}
    return {**ends, "depth": place.shape[0]}
