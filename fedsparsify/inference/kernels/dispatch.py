"""The functions that Python calls: they execute programs, row by row, and take jobs from job slots.

Input: addresses of a program's header (`lowering/program.py`), an arena, a batch and its output, and of a job slot and
a barrier (`job_words.py`). Output: logits at the output's address. Compiled once per vector width, for all shapes.
"""

from __future__ import annotations

from typing import Any

from numba import from_dtype

from ...native.compiled import compiled, inlined
from ...native.pointers import longs, seen_as
from .activations import activate
from .dense import dense
from .elementwise import add, affine, gate
from .job_words import JOB, JOB_WORDS, NEXT_JOB_WORD, PREVIOUS, WORKER
from .matmul import matmul
from .moves import fetch, move, spread, transpose_samples, write_halo
from .norms import mean, norm, softmax
from .pointwise import pointwise
from .pool import pool
from .program_table import ROW_RECORD, Kind
from .sparse import linear, pixel_lane, small, sparse
from .threads import exchange, next_number, wait_at, wait_for_job
from .winograd import winograd

(
    PACK,
    UNPACK,
    MOVE,
    HALO,
    SPARSE,
    DENSE,
    WINOGRAD,
    POOL,
    AFFINE,
    ADD,
    ACTIVATION,
    SOFTMAX,
    TRANSPOSE,
    BARRIER,
    SMALL,
    LINEAR,
    FETCH,
    PIXEL_LANE,
    CONSTANT,
    NORM,
    GATE,
    MEAN,
    MATMUL,
    POINTWISE,
    SPREAD,
) = (int(kind) for kind in Kind)
ROW_BYTES, JOB_BYTES = ROW_RECORD.itemsize, 8 * len(JOB_WORDS)
operation = seen_as(from_dtype(ROW_RECORD))


def entries(lanes: int) -> list[Any]:
    """The functions that Python calls, for one vector width: see runtime/native_calls.py."""
    return entries_of(serve, lanes)


def entries_of(serve: Any, lanes: int) -> list[Any]:
    """The same for one `server`."""
    width = (0,) * lanes

    def served(jobs: Any, count: Any, arena: Any, x: Any, y: Any, slot: Any, barrier: Any) -> None:
        serve(width, jobs, count, arena, x, y, slot, barrier)

    return [served, post.py_func]


@inlined
def execute(width: Any, program: Any, arena: Any, x: Any, y: Any, samples: Any, barrier: Any, arrivals: Any) -> None:
    """Run a program over one block of samples at address x, into y; the barrier has counted `arrivals` before."""
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
        elif kind == POINTWISE:
            pointwise(width, op, arena, stream, params, indices)
        elif kind == SMALL:
            small(width, op, arena, stream, params)
        elif kind == PIXEL_LANE:
            pixel_lane(width, op, arena, stream, params)
        elif kind == LINEAR:
            linear(op, arena, stream, params)
        elif kind == DENSE:
            dense(width, op, arena, params, indices)
        elif kind == WINOGRAD:
            winograd(width, op, arena, params, indices)
        elif kind == HALO:
            write_halo(width, op, arena, indices)
        elif kind == FETCH:
            fetch(width, op, arena, indices)
        elif kind == PACK:
            move(op, x + 4 * op.source, arena + 4 * op.target, indices, left)
        elif kind == SPREAD:
            spread(width, op, x + 4 * op.source, arena + 4 * op.target, indices)
        elif kind == TRANSPOSE:
            transpose_samples(width, op, x + 4 * op.source, arena + 4 * op.target, left)
        elif kind == UNPACK:
            move(op, arena + 4 * op.source, y + 4 * op.target, indices, left)
        elif kind == MOVE:
            move(op, arena + 4 * op.source, arena + 4 * op.target, indices, left)
        elif kind == POOL:
            pool(width, op, arena, params, indices)
        elif kind == AFFINE:
            affine(width, op, arena, params)
        elif kind == ADD:
            add(width, op, arena)
        elif kind == ACTIVATION:
            activate(width, op, arena)
        elif kind == SOFTMAX:
            softmax(width, op, arena)
        elif kind == NORM:
            norm(width, op, arena, params)
        elif kind == GATE:
            gate(width, op, arena)
        elif kind == MEAN:
            mean(width, op, arena, params, indices)
        elif kind == MATMUL:
            matmul(width, op, arena, indices)
        elif kind == CONSTANT:
            move(op, params + 4 * op.source, arena + 4 * op.target, indices, left)
        elif kind == BARRIER:
            wait_at(barrier, arrivals + op.arrivals)


def server(execute: Any) -> Any:
    """The function that takes jobs and runs each by `execute`."""

    @inlined
    def serve(width: Any, jobs: Any, count: Any, arena: Any, x: Any, y: Any, slot: Any, barrier: Any) -> None:
        """Three uses, which share one call of `execute`, as each that is compiled takes seconds.

        Without a slot: run `count` jobs, one after the other, in `arena`. With a slot and a count: do this thread's
        part of the jobs in the slot, once. With a slot and no count: do so for each set of jobs, until none comes for a
        while. A thread's part is the job of its number; where jobs are `queued`, idle threads take the next job.
        """
        words, step, queued, worker, arrivals, last = longs(slot), 1, 0, 0, 0, count
        while slot == 0 or count > 0 or wait_for_job(slot, barrier) == JOB:
            k = 0
            if slot != 0:
                jobs, last, x, y, arrivals, queued, worker = (
                    words[1],
                    words[2],
                    words[3],
                    words[4],
                    words[5],
                    words[6],
                    words[WORKER],
                )
                step = last  # one job
                k = worker if queued == 0 else next_number(barrier + 8 * NEXT_JOB_WORD)
            while k < last:
                job = longs(jobs + k * JOB_BYTES)
                memory = arena if slot == 0 else job[1] + worker * job[2]
                execute(width, job[0], memory, x + job[3], y + job[4], job[5], barrier, arrivals)
                k = k + step if queued == 0 else next_number(barrier + 8 * NEXT_JOB_WORD)
            if queued > 0:
                wait_at(barrier, arrivals + queued)
            if slot == 0 or count > 0:
                break

    return serve


serve = server(execute)


@compiled
def post(slot: Any, state: Any) -> None:
    """Write a job slot's state, and beside it the state before."""
    longs(slot)[PREVIOUS] = exchange(slot, state)
