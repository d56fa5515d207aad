"""Addresses as typed pointers, for compiled functions, which are handed plain 64-bit integers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I32, F32 = ir.IntType(32), ir.FloatType()


def seen_as(kind: Any) -> Any:
    """A function that sees an address as a pointer."""

    @intrinsic
    def seen(_, address):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(kind))

        return kind(types.int64), generate

    return seen


floats = seen_as(types.CPointer(types.float32))
ints = seen_as(types.CPointer(types.int32))
longs = seen_as(types.CPointer(types.int64))


@intrinsic
def bits_of(_, value):  # type: ignore[no-untyped-def]
    """The bits of a float, as an integer."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], I32)

    return types.int32(types.float32), generate


@intrinsic
def float_of(_, bits):  # type: ignore[no-untyped-def]
    """The float that the lower 32 bits of an integer stand for."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], I32), F32)

    return types.float32(types.int64), generate
