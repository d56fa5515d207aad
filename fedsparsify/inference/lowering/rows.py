"""The table that a program is: one row an operation, all numbers. Offsets and strides count floats."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Kind(IntEnum):
    """What a row does."""

    PACK = 0  # input → arena
    UNPACK = 1  # arena → output
    MOVE = 2  # arena → arena, into other lanes
    HALO = 3
    SPARSE = 4
    DENSE = 5
    WINOGRAD = 6
    POOL = 7
    AFFINE = 8
    ADD = 9
    CURVE = 10
    SOFTMAX = 11
    TRANSPOSE = 12  # flat input → arena
    MEET = 13  # wait for the other workers
    SMALL = 14  # a sparse convolution of small images
    LINEAR = 15  # a sparse linear layer of one image
    FETCH = 16  # what another worker made, into memory of one's own
    LONE = 17  # a sparse convolution of one image of a pixel a lane


_INTEGERS = (
    "kind",
    "image",  # first image of the block that the row serves; skipped where the batch has fewer
    "source",
    "second",  # the other summand of ADD; scratch of a convolution
    "target",
    "channels",  # of the target
    "depth",  # channels of the source, where they differ
    "source_channel",
    "second_channel",
    "target_channel",
    "source_row",
    "second_row",
    "target_row",
    "rows",
    "columns",
    "stride_row",  # source floats between two outputs
    "stride_column",
    "tile",
    "blocks",  # of input channels
    "stream",
    "params",
    "table",
    "count",
    "per_image",
    "flag",
    "corner",  # from the first output's place to the first input that it reads
)
OPERATION = np.dtype([(name, np.int64) for name in _INTEGERS] + [("low", np.float32), ("high", np.float32)])

PLANE_GAP = 64  # bytes between two frequencies' values, which else would all fall into one set of the nearest cache
IDLE, JOB, ASLEEP, QUIT = range(4)  # states of a helper's mailbox
MAIL_WORDS = ("state", "orders", "count", "x", "y", "comings", "together", "before", "worker")
BEFORE, WORKER = MAIL_WORDS.index("before"), MAIL_WORDS.index("worker")
YIELD_PLACE = 8  # the word of a gate that holds the address of the function that gives the core away
NEXT_PLACE = 16  # the word of a gate that counts the orders that were taken
ORDER_WORDS = ("program", "arena", "apart", "x", "y", "images")  # apart: bytes from a worker's arena to the next one's
TILES = ((4, 4), (2, 4), (2, 2), (1, 4), (1, 2), (1, 1))  # rows × columns, as kernels.py numbers them


STRIDED_TILES = (TILES[1], TILES[5])  # the two that strided convolutions have code for


class Orders(NamedTuple):
    """Programs to run, as the kernels read them (see ORDER_WORDS): the array, its address, how many."""

    words: NDArray[np.int64]
    address: int
    size: int

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Orders:
        """From the words of each."""
        words = np.array(rows, np.int64).reshape(len(rows), len(ORDER_WORDS))
        return cls(words, words.ctypes.data, len(rows))


def header_of(table: NDArray[Any], *constants: NDArray[Any]) -> NDArray[np.int64]:
    """What the kernels are told of a program: where its rows lie, how many there are, and where each constant lies."""
    return np.array([table.ctypes.data, len(table), *(array.ctypes.data for array in constants)], np.int64)


def table_of(rows: Sequence[dict[str, Any]]) -> NDArray[Any]:
    """Rows given by field; what a row does not name is zero."""
    table = np.zeros(len(rows), OPERATION)
    for row, values in zip(table, rows, strict=True):
        for field, value in values.items():
            row[field] = value
    return table
