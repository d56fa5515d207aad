"""The functions that Python calls for integer programs: the rows of `lowering/rows.py`, on 16-bit integers.

As `inference/kernels/dispatch.py`, whose job slots and threads it shares.
"""

from __future__ import annotations

from typing import Any

from ....native.compiled import inlined
from ....native.pointers import longs
from ...kernels.dispatch import ROW_BYTES, entries_of, operation, server
from ...kernels.program_table import Kind
from .convolutions import small, sparse
from .moves import dequantise, move, pool, quantise, quantise_rows, write_halo
from .winograd import winograd

IMAGES = (Kind.SPARSE, Kind.SMALL, Kind.WINOGRAD, Kind.POOL)
COPIES = (Kind.PACK, Kind.TRANSPOSE, Kind.UNPACK, Kind.MOVE, Kind.HALO)
SPARSE, SMALL, WINOGRAD, POOL = map(int, IMAGES)
PACK, TRANSPOSE, UNPACK, MOVE, HALO = map(int, COPIES)


@inlined
def execute(width: Any, program: Any, arena: Any, x: Any, y: Any, samples: Any, barrier: Any, arrivals: Any) -> None:
    """Run a program over one block of samples at address x, into y."""
    header = longs(program)
    table, rows, stream, params, indices = header[0], header[1], header[2], header[3], header[4]
    for k in range(rows):
        op = operation(table + k * ROW_BYTES)
        left = samples - op.first_sample
        if left <= 0:
            continue
        kind = op.kind
        if kind == SPARSE:
            sparse(width, op, arena, stream, params)
        elif kind == SMALL:
            small(width, op, arena, stream, params)
        elif kind == WINOGRAD:
            winograd(width, op, arena, stream, params)
        elif kind == HALO:
            write_halo(width, op, arena, indices)
        elif kind == MOVE:
            move(op, arena + 2 * op.source, arena + 2 * op.target, indices, left)
        elif kind == PACK:
            quantise(op, x + 4 * op.source, arena + 2 * op.target, params, indices, left)
        elif kind == TRANSPOSE:
            quantise_rows(op, x + 4 * op.source, arena + 2 * op.target, params, left)
        elif kind == UNPACK:
            dequantise(op, arena + 2 * op.source, y + 4 * op.target, params, indices, left)
        elif kind == POOL:
            pool(width, op, arena, params)


serve = server(execute)


def entries(lanes: int) -> list[Any]:
    """The functions that Python calls, for vectors of so many floats."""
    return entries_of(serve, 2 * lanes)
