"""Triton kernels that read activations once: batch norm, sums, dropout, gathering samples.

The layout is that of `product_kernels.py`, and sums have a fixed order, too.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _moments(x, sums, squares, rows_all, chunk, c, BR: tl.constexpr, BC: tl.constexpr):
    """Σ (x − pivot) and Σ (x − pivot)² of a chunk of rows; the pivot is the model's first row, so nothing cancels."""
    split, model = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    x += model * rows_all * c
    pivot = tl.load(x + channels, mask=channels < c, other=0.0).to(tl.float32)
    first, second = tl.zeros((BR, BC), tl.float32), tl.zeros((BR, BC), tl.float32)
    for offset in range(0, chunk, BR):
        rows = split * chunk + offset + tl.arange(0, BR)
        ok = (rows < rows_all)[:, None] & (channels < c)[None, :]
        value = tl.load(x + rows[:, None] * c + channels[None, :], mask=ok, other=0.0).to(tl.float32)
        value = tl.where(ok, value - pivot[None, :], 0.0)
        first += value
        second += value * value
    place = (model * tl.num_programs(1) + split) * c + channels
    tl.store(sums + place, tl.sum(first, 0), mask=channels < c)
    tl.store(squares + place, tl.sum(second, 0), mask=channels < c)


@triton.jit
def _moments_end(
    x, sums, squares, centre, scale, running_mean, running_var, rows_all, eps, rate,
    c, splits_all, BS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Join the chunks: the batch's mean and 1/deviation, and the running statistics."""
    model = tl.program_id(1).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    splits = tl.arange(0, BS)
    ok = channels < c
    both = (splits < splits_all)[:, None] & ok[None, :]
    place = (model * splits_all + splits[:, None]) * c + channels[None, :]
    first = tl.sum(tl.load(sums + place, mask=both, other=0.0), 0) / rows_all
    second = tl.sum(tl.load(squares + place, mask=both, other=0.0), 0) / rows_all
    mean = tl.load(x + model * rows_all * c + channels, mask=ok, other=0.0).to(tl.float32) + first
    variance = tl.maximum(second - first * first, 0.0)
    at = model * c + channels
    tl.store(centre + at, mean, mask=ok)
    tl.store(scale + at, 1 / tl.sqrt(variance + eps), mask=ok)
    unbiased = variance * (rows_all / (rows_all - 1.0))
    tl.store(running_mean + at, tl.load(running_mean + at, mask=ok) * (1 - rate) + mean * rate, mask=ok)
    tl.store(running_var + at, tl.load(running_var + at, mask=ok) * (1 - rate) + unbiased * rate, mask=ok)


@triton.jit
def _normalise(
    x, added, y, centre, scale, gamma, beta, rows_all, c,
    ADD: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Y = act((X − mean) · scale · γ + β); ADD: plus another value, before the ReLU."""
    model = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = (rows < rows_all)[:, None] & (channels < c)[None, :]
    at = model * c + channels
    slope = tl.load(scale + at, mask=channels < c) * tl.load(gamma + at, mask=channels < c)
    shift = tl.load(beta + at, mask=channels < c) - tl.load(centre + at, mask=channels < c) * slope
    place = model * rows_all * c + rows[:, None] * c + channels[None, :]
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32) * slope[None, :] + shift[None, :]
    if ADD:
        value += tl.load(added + place, mask=ok, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=ok)


@triton.jit
def _normalise_sums(dy_, x, centre, scale, sums, products, rows_all, chunk, c, BR: tl.constexpr, BC: tl.constexpr):
    """Σ dY and Σ dY · x̂ of a chunk of rows, channel by channel."""
    split, model = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    at = model * c + channels
    mean = tl.load(centre + at, mask=channels < c, other=0.0)
    inverse = tl.load(scale + at, mask=channels < c, other=0.0)
    total, product = tl.zeros((BR, BC), tl.float32), tl.zeros((BR, BC), tl.float32)
    for offset in range(0, chunk, BR):
        rows = split * chunk + offset + tl.arange(0, BR)
        ok = (rows < rows_all)[:, None] & (channels < c)[None, :]
        place = model * rows_all * c + rows[:, None] * c + channels[None, :]
        g = tl.load(dy_ + place, mask=ok, other=0.0).to(tl.float32)
        total += g
        product += g * (tl.load(x + place, mask=ok, other=0.0).to(tl.float32) - mean[None, :])
    place = (model * tl.num_programs(1) + split) * c + channels
    tl.store(sums + place, tl.sum(total, 0), mask=channels < c)
    tl.store(products + place, tl.sum(product, 0) * inverse, mask=channels < c)


@triton.jit
def _normalise_gradient(
    dy_, x, dx_, centre, scale, gamma, beta_gradient, gamma_gradient, sums, rows_all,
    c, FIXED: tl.constexpr, MASK: tl.constexpr, SUMS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dX = γ · scale · (dY − mean dY − x̂ · mean(dY · x̂)), zero where X's ReLU was inactive; column sums by blocks.

    FIXED: the moments do not depend on X, and dX = γ · scale · dY.
    """
    model = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = (rows < rows_all)[:, None] & (channels < c)[None, :]
    at, here = model * c + channels, channels < c
    inverse = tl.load(scale + at, mask=here, other=0.0)
    mean_g = tl.load(beta_gradient + at, mask=here, other=0.0) / rows_all
    mean_p = tl.load(gamma_gradient + at, mask=here, other=0.0) / rows_all
    slope = tl.load(gamma + at, mask=here, other=0.0) * inverse
    place = model * rows_all * c + rows[:, None] * c + channels[None, :]
    g = tl.load(dy_ + place, mask=ok, other=0.0).to(tl.float32)
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    hat = (value - tl.load(centre + at, mask=here, other=0.0)[None, :]) * inverse[None, :]
    if not FIXED:
        g = g - mean_g[None, :] - hat * mean_p[None, :]
    g = slope[None, :] * g
    if MASK:
        g = tl.where(value > 0, g, 0.0)
    if SUMS:
        block = model * tl.num_programs(0) + tl.program_id(0)
        tl.store(sums + block * c + channels, tl.sum(tl.where(ok, g, 0.0), 0), mask=here)
    tl.store(dx_ + place, g.to(dx_.dtype.element_ty), mask=ok)


@triton.jit
def _sum(a, b, x, y, count, TWO: tl.constexpr, RELU: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr):
    """Y = act(A + B), or act(A); MASK: zero where X is, which came out of a ReLU."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    value = tl.load(a + i, mask=ok, other=0.0).to(tl.float32)
    if TWO:
        value += tl.load(b + i, mask=ok, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    if MASK:
        value = tl.where(tl.load(x + i, mask=ok, other=0.0) > 0, value, 0.0)
    tl.store(y + i, value.to(y.dtype.element_ty), mask=ok)


@triton.jit
def _smallest_kept(bits, shares, limits, count, real, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """The least magnitude among the largest entries of one model's values: its share of `real` entries, at least one.

    Magnitudes are in the order of their bits: `TOP` of them, found from the highest.
    """
    model = tl.program_id(0).to(tl.int64)
    share = tl.load(shares + model)
    wanted = tl.maximum((share * real).to(tl.int64), 1)
    bits += model * count
    least = tl.full((), 0, tl.int32)
    for step in range(TOP):
        candidate = least | (1 << (TOP - 1 - step))
        found = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, count, BLOCK):
            i = start + tl.arange(0, BLOCK)
            value = tl.load(bits + i, mask=i < count, other=0).to(tl.int32)
            found += ((value & ((1 << (TOP - 1)) - 1 + (1 << (TOP - 1)))) >= candidate).to(tl.int32)
        least = tl.where(tl.sum(found, 0) >= wanted, candidate, least)
    limit = (least << (31 - TOP)).to(tl.float32, bitcast=True)
    tl.store(limits + model, tl.where(share < 1, limit, 0.0))


@triton.jit
def _mix(x):
    """The hash of keyed.py."""
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@triton.jit
def _dropout(
    x, open_, y, keys, count, p, scale, salted,
    PIXELS: tl.constexpr, C: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Y = X where a draw from the model's key is at least p, scaled up; zero where the preceding ReLU was inactive.

    Element i draws the number of its place in torch's order (samples, channels, pixels).
    """
    model = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    place = i
    if PIXELS > 1:
        place = i // (PIXELS * C) * (PIXELS * C) + i % C * PIXELS + i // C % PIXELS
    key = tl.load(keys + model)
    inner = _mix(key)
    outer = _mix(inner + (key >> 31) + salted)
    bits = _mix(_mix(place.to(tl.int64) + inner) ^ outer)
    keep = (bits >> 8).to(tl.float32) * (1.0 / 16777216.0) >= p
    if MASK:
        keep = keep & (tl.load(open_ + model * count + i, mask=ok, other=0.0) > 0)
    value = tl.load(x + model * count + i, mask=ok, other=0.0).to(tl.float32)
    tl.store(y + model * count + i, tl.where(keep, value * scale, 0.0).to(y.dtype.element_ty), mask=ok)


@triton.jit
def _gather(
    images, rows, stride, batch, top, left, flip, x, pixels,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, CX: tl.constexpr, MOVE: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Samples `rows` of (n, H, W, C) images as (…, H, W, CX), shifted and mirrored; zeros after channel C."""
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    channels = tl.arange(0, CX)
    source = tl.load(rows + sample // batch * stride + sample % batch)
    py, px = p // W, p % W
    if MOVE:
        px = tl.where(tl.load(flip + sample) != 0, W - 1 - px, px)
        py = py + tl.load(top + sample)
        px = px + tl.load(left + sample)
    ok = (p < pixels) & (py >= 0) & (py < H) & (px >= 0) & (px < W)
    at = ((source * H + py) * W + px)[:, None] * C + channels[None, :]
    value = tl.load(images + at, mask=ok[:, None] & (channels < C)[None, :], other=0.0)
    place = (sample * pixels + p)[:, None] * CX + channels[None, :]
    tl.store(x + place, value.to(x.dtype.element_ty), mask=(p < pixels)[:, None])
