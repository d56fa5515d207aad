"""Atomic operations by which threads hand over jobs and wait for each other: barrier, job slot, counter."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import I32, I64
from .job_words import ASLEEP, IDLE, JOB, YIELD_WORD

SPINS_BEFORE_YIELD = 2000  # looks at a word before the core is yielded between them
SPINS_BEFORE_SLEEP = 6000  # looks before an idle thread sleeps


def _spin(builder: Any, barrier: Any, done: Any, limit: int | None, give_up: Any) -> None:
    """Spin until `done()`. After some spins the core is yielded in between; after `limit` spins `give_up()` runs."""
    spin, wait, rest, go = (builder.append_basic_block(name) for name in ("spin", "wait", "rest", "go"))
    before = builder.block
    builder.branch(spin)
    builder.position_at_end(spin)
    spins = builder.phi(I64)
    spins.add_incoming(ir.Constant(I64, 0), before)
    builder.cbranch(done(), go, wait)
    builder.position_at_end(wait)
    more = builder.add(spins, ir.Constant(I64, 1))
    spins.add_incoming(more, wait)
    builder.cbranch(builder.icmp_signed(">", more, ir.Constant(I64, SPINS_BEFORE_YIELD)), rest, spin)
    builder.position_at_end(rest)
    word = builder.add(barrier, ir.Constant(I64, 8 * YIELD_WORD))
    yield_core = builder.load(builder.inttoptr(word, I64.as_pointer()))
    builder.call(builder.inttoptr(yield_core, ir.FunctionType(I32, []).as_pointer()), [])
    if limit is not None:
        with builder.if_then(builder.icmp_signed(">", more, ir.Constant(I64, limit))):
            give_up()
    spins.add_incoming(more, builder.block)
    builder.branch(spin)
    builder.position_at_end(go)


@intrinsic
def wait_at(_, barrier, count):  # type: ignore[no-untyped-def]
    """Arrive at a barrier (a counter) and wait until it has counted `count` arrivals."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word_pointer = builder.inttoptr(args[0], I64.as_pointer())
        builder.atomic_rmw("add", word_pointer, ir.Constant(I64, 1), "acq_rel")

        def all_arrived() -> Any:
            return builder.icmp_signed(">=", builder.load_atomic(word_pointer, "acquire", 8), args[1])

        _spin(builder, args[0], all_arrived, None, None)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def next_number(_, counter):  # type: ignore[no-untyped-def]
    """The next number of a counter. No two threads get the same."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], I64.as_pointer()), ir.Constant(I64, 1), "acq_rel")

    return types.int64(types.int64), generate


@intrinsic
def wait_for_job(_, state, barrier):  # type: ignore[no-untyped-def]
    """Wait until a job slot holds a job (and take it) or QUIT, or until the spins are used up (ASLEEP); its state."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word_pointer = builder.inttoptr(args[0], I64.as_pointer())
        idle, job, asleep = (ir.Constant(I64, value) for value in (IDLE, JOB, ASLEEP))

        def full() -> Any:
            return builder.icmp_signed("!=", builder.load_atomic(word_pointer, "acquire", 8), idle)

        def give_up() -> None:
            builder.cmpxchg(word_pointer, idle, asleep, "acq_rel", "acquire")

        _spin(builder, args[1], full, SPINS_BEFORE_SLEEP, give_up)
        found = builder.load_atomic(word_pointer, "acquire", 8)
        with builder.if_then(builder.icmp_signed("==", found, job)):
            builder.cmpxchg(word_pointer, job, idle, "acq_rel", "acquire")
        return found

    return types.int64(types.int64, types.int64), generate


@intrinsic
def exchange(_, state, value):  # type: ignore[no-untyped-def]
    """Write a job slot's state; returns the state before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", builder.inttoptr(args[0], I64.as_pointer()), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate
