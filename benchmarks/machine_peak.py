"""The most that one core can do: fused multiply-adds on values that never leave its registers."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from fedsparsify.native.machine import lanes_here
from fedsparsify.native.simd import F32, Emitter, Values, sides

SUMS = 12


@intrinsic
def multiply_add(_, width, count):  # type: ignore[no-untyped-def]
    """`count` times twelve independent vector multiply-adds; their sum's first lane."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, lanes)
        factor = e.splat(builder.uitofp(args[1], F32))

        def body(state: Values) -> Values:
            return [e.fma(total, factor, factor) for total in state]

        sums = e.loop(args[1], [e.constant(float(k)) for k in range(SUMS)], body)
        total = sums[0]
        for other in sums[1:]:
            total = builder.fadd(total, other)
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return types.float32(width, types.int64), generate


@njit
def _spin(width: Any, count: int) -> Any:
    return multiply_add(width, count)


def fma_gflops() -> float:
    """GFLOP/s of one core, the best of several tries."""
    lanes, count = lanes_here(), 200_000
    width = (0,) * lanes
    _spin(width, 1)
    times = []
    for _ in range(99):
        start = perf_counter()
        _spin(width, count)
        times.append(perf_counter() - start)
    return 2 * SUMS * lanes * count / min(times) / 1e9


if __name__ == "__main__":
    print(f"{fma_gflops():.0f} GFLOP/s")
