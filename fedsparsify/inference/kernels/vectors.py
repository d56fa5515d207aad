"""Vector code of the operations besides convolutions: copying and shifting lanes, borders, pooling a window."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import FLOAT_BYTES, I32, I64, Emitter, Values, grid, sides


@intrinsic
def read_int(_, address):  # type: ignore[no-untyped-def]
    """The 32-bit integer at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(Emitter(builder, 1).load(args[0], I32), I64)

    return types.int64(types.int64), generate


@intrinsic
def copy_floats(_, run, target, source):  # type: ignore[no-untyped-def]
    """A run of floats from address to address."""
    (floats,) = sides(run)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, floats)
        builder.store(e.load_anywhere(args[2]), builder.inttoptr(args[1], e.vector.as_pointer())).align = FLOAT_BYTES
        return context.get_dummy_value()

    return types.void(run, types.int64, types.int64), generate


@intrinsic
def prefetch(_, address):  # type: ignore[no-untyped-def]
    """Prefetch the cache line at an address, which will be written."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        Emitter(builder, 1).prefetch(args[0], writing=True)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def shift_lanes(_, width, target, source, mask, fill):  # type: ignore[no-untyped-def]
    """The vector at any address `source` to `target`; lanes where the mask holds 0 take the fill."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, mask, fill = args
        e = Emitter(builder, lanes)
        e.store(builder.select(e.nonzero(mask), e.load_anywhere(source), e.splat(fill)), target)
        return context.get_dummy_value()

    return types.void(width, types.int64, types.int64, types.int64, types.float32), generate


@intrinsic
def merge_lanes(_, width, target, source, mask):  # type: ignore[no-untyped-def]
    """Lanes of the vector at any address `source` into `target`, where the mask does not hold 0."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, mask = args
        e = Emitter(builder, lanes)
        e.store(builder.select(e.nonzero(mask), e.load_anywhere(source), e.load(target)), target)
        return context.get_dummy_value()

    return types.void(width, types.int64, types.int64, types.int64), generate


@intrinsic
def frame(_, width, grid_rows, grid_columns, border, corner, row, rows, columns, fill):  # type: ignore[no-untyped-def]
    """Write the halo around a channel whose lanes are a grid of blocks: `border` pixels of the neighbours."""
    lanes, height, breadth, pixels = sides(width, grid_rows, grid_columns, border)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, _, corner, row, rows, columns, fill = args
        e = Emitter(builder, lanes)
        write_frame(e, (height, breadth), corner, row, rows, columns, e.splat(fill), pixels)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, grid_rows, grid_columns, border, i64, i64, i64, i64, types.float32), generate


def write_frame(
    e: Emitter,
    lane_grid: tuple[int, int],
    corner: Any,
    row: Any,
    rows: Any,
    columns: Any,
    outside: Any,
    border: int = 1,
) -> None:
    """The code of `frame`, for lanes of any type; `outside` is the vector of the fill.

    All comes from the block's own pixels, corners too, so that nothing waits for what was just written.
    """
    builder, (height, breadth) = e.builder, lane_grid

    def hand(source: Any, target: Any, down: int, right: int) -> None:
        """Each lane's element to the neighbour so far down and right; lanes without a source take the fill."""
        taken = []
        for lane in range(e.lanes):
            i, j = lane // breadth % height - down, lane % breadth - right
            inside = 0 <= i < height and 0 <= j < breadth
            taken.append(lane - down * breadth - right if inside else e.lanes + lane)
        mask = ir.Constant(ir.VectorType(I32, e.lanes), taken)
        e.store(builder.shuffle_vector(e.load(source), outside, mask), target)

    step = ir.Constant(I64, e.bytes)
    width_bytes = builder.mul(columns, step)
    last = builder.add(corner, builder.mul(builder.sub(rows, ir.Constant(I64, 1)), row))  # the last row

    def end_of(line: Any) -> Any:
        return e.at(builder.add(line, width_bytes), -e.bytes)

    def along_rows(state: Values) -> Values:
        (line,) = state
        for k in range(border):
            hand(e.at(end_of(line), -k * e.bytes), e.at(line, -(k + 1) * e.bytes), 0, 1)
            hand(e.at(line, k * e.bytes), e.at(builder.add(line, width_bytes), k * e.bytes), 0, -1)
        return [builder.add(line, row)]

    def along_columns(state: Values) -> Values:
        top, bottom = state
        upper, lower = top, bottom
        for _ in range(border):
            top, bottom = builder.sub(top, row), builder.add(bottom, row)
            hand(lower, top, 1, 0)
            hand(upper, bottom, -1, 0)
            upper, lower = builder.add(upper, row), builder.sub(lower, row)
        return [e.at(state[0], e.bytes), e.at(state[1], e.bytes)]

    e.loop(rows, [corner], along_rows)
    e.loop(columns, [corner, last], along_columns)
    upper, lower, above, below = corner, last, corner, last
    for _ in range(border):
        above, below = builder.sub(above, row), builder.add(below, row)
        for k in range(border):
            left, right = -(k + 1) * e.bytes, k * e.bytes
            hand(e.at(end_of(lower), -right), e.at(above, left), 1, 1)
            hand(e.at(lower, right), e.at(builder.add(above, width_bytes), right), 1, -1)
            hand(e.at(end_of(upper), -right), e.at(below, left), -1, 1)
            hand(e.at(upper, right), e.at(builder.add(below, width_bytes), right), -1, -1)
        upper, lower = builder.add(upper, row), builder.sub(lower, row)


@intrinsic
def pool_cell(  # type: ignore[no-untyped-def]
    _, width, target, source, row, rows, columns, mean, factor, shift, low, high
):
    """Largest value (or sum, if `mean`) of a window of vectors, times factor plus shift, clamped."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, row, rows, columns, mean, factor, shift, low, high = args
        e = Emitter(builder, lanes)

        def reduced(combine: Any, start: float) -> Values:
            def along_row(state: Values) -> Values:
                return [combine(state[0], e.load(state[1])), e.at(state[1], e.bytes)]

            def down(state: Values) -> Values:
                return [e.loop(columns, [state[0], state[1]], along_row)[0], builder.add(state[1], row)]

            return e.loop(rows, [e.constant(start), source], down)[:1]

        (value,) = e.either(mean, lambda: reduced(builder.fadd, 0.0), lambda: reduced(e.larger, float("-inf")))
        value = e.fma(value, e.splat(factor), e.splat(shift))
        e.store(e.clamp(value, e.splat(low), e.splat(high)), target)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, i64, i64, i64, i64, i64, i64, f32, f32, f32, f32), generate


@intrinsic
def pool_squares(_, width, target, source, row, count, factor, shift, low, high):  # type: ignore[no-untyped-def]
    """Largest values of 2 × 2 vectors side by side, the windows of most networks, times factor plus shift, clamped."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, row, count, factor, shift, low, high = args
        e = Emitter(builder, lanes)
        factor, shift, low, high = (e.splat(scalar) for scalar in (factor, shift, low, high))

        def along(state: Values) -> Values:
            target, source = state
            square = [e.load(cell) for cell in grid(e, source, row, ir.Constant(I64, e.bytes), 2, 2)]
            (value,) = e.largest(square, 2)
            e.store(e.clamp(e.fma(value, factor, shift), low, high), target)
            return [e.at(target, e.bytes), e.at(source, 2 * e.bytes)]

        e.loop(count, [target, source], along)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, i64, i64, i64, i64, f32, f32, f32, f32), generate
