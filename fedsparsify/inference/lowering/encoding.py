"""Encoding: from typed rows to the numeric table that the kernels execute.

Input: rows (`rows.py`, `convolution_rows.py`). Output: an array of records (`kernels/program_table.py`). A field's
name is its column's name; only here are fields that hold several numbers taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.program_table import ROW_RECORD
from .rows import Row

Table = NDArray[np.void]  # of ROW_RECORD records

COLUMNS: dict[str, tuple[str, ...]] = {  # of the fields that hold several numbers
    "source": ("source", "source_channel", "source_row"),
    "second": ("second", "second_channel", "second_row"),
    "target": ("target", "target_channel", "target_row"),
    "block": ("rows", "columns"),
    "stride": ("stride_row", "stride_column"),
    "clamp": ("low", "high"),
}


def columns_of(kind: type[Row]) -> dict[str, tuple[str, ...]]:
    """The fields of a kind of row, each with its columns of the table."""
    return {field.name: COLUMNS.get(field.name, (field.name,)) for field in fields(kind)}


def encode(rows: Sequence[Row]) -> Table:
    """The table of a program; columns that a kind of row does not have are zero."""
    table = np.zeros(len(rows), ROW_RECORD)
    columns_by_kind = {kind: columns_of(kind) for kind in {type(row) for row in rows}}
    for record, row in zip(table, rows, strict=True):
        record["kind"] = row.kind
        for name, columns in columns_by_kind[type(row)].items():
            value = getattr(row, name)
            for column, number in zip(columns, value if isinstance(value, tuple) else (value,), strict=True):
                record[column] = number
    return table


def header_of(table: Table, *constants: NDArray[Any]) -> NDArray[np.int64]:
    """What the kernels are told of a program: where its rows lie, how many there are, and where each constant lies."""
    return np.array([table.ctypes.data, len(table), *(array.ctypes.data for array in constants)], np.int64)
