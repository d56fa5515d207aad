"""Triton kernels for pools of a stack of images: the largest of a window, and the mean of an image.

The layout is that of `product_kernels.py`. H × W are the pixels of the input, OH × OW those of the output.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _pool(x, y, which, rows_all, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """Largest of every 2×2 pixels, and which of the four it was (the first of equals)."""
    rows = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)  # of the output
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    OH: tl.constexpr = H // 2
    OW: tl.constexpr = W // 2
    ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
    corner = (rows // (OH * OW) * H + rows // OW % OH * 2) * W + rows % OW * 2
    best = tl.load(x + corner[:, None] * C + channels[None, :], mask=ok, other=0.0)
    found = tl.zeros((BR, BC), tl.int8)
    for j in tl.static_range(1, 4):
        other = tl.load(x + (corner + j // 2 * W + j % 2)[:, None] * C + channels[None, :], mask=ok, other=0.0)
        found = tl.where(other > best, j, found).to(tl.int8)
        best = tl.maximum(best, other)
    place = rows[:, None] * C + channels[None, :]
    tl.store(y + place, best, mask=ok)
    tl.store(which + place, found, mask=ok)


@triton.jit
def _pool_gradient(
    dy_, y, which, dx_, sums, rows_all,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, MASK: tl.constexpr, SUMS: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradient goes to the largest pixel, and is zero where the ReLU that made it was inactive; column sums."""
    model = tl.program_id(2).to(tl.int64)
    dy_ += model * rows_all * C
    y += model * rows_all * C
    which += model * rows_all * C
    dx_ += model * rows_all * 4 * C
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    OH: tl.constexpr = H // 2
    OW: tl.constexpr = W // 2
    ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
    place = rows[:, None] * C + channels[None, :]
    g = tl.load(dy_ + place, mask=ok, other=0.0)
    if MASK:
        g = tl.where(tl.load(y + place, mask=ok, other=0.0) > 0, g, 0.0)
    if SUMS:
        block = model * tl.num_programs(0) + tl.program_id(0)
        tl.store(sums + block * C + channels, tl.sum(g.to(tl.float32), 0), mask=channels < C)
    found = tl.load(which + place, mask=ok, other=0)
    corner = (rows // (OH * OW) * H + rows // OW % OH * 2) * W + rows % OW * 2
    for j in tl.static_range(4):
        at = (corner + j // 2 * W + j % 2)[:, None] * C + channels[None, :]
        tl.store(dx_ + at, tl.where(found == j, g, 0.0).to(dx_.dtype.element_ty), mask=ok)


@triton.jit
def _window_pool(
    x, y, which, rows_all,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Largest of every window of SIDE × SIDE pixels within the image, and which it was (the first of equals)."""
    rows = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)  # of the output
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
    py, px = rows // OW % OH * STRIDE - PAD, rows % OW * STRIDE - PAD
    corner = (rows // (OH * OW) * H + py) * W + px
    best = tl.full((BR, BC), -float("inf"), tl.float32)
    found = tl.zeros((BR, BC), tl.int8)
    for tap in range(SIDE * SIDE):
        ky, kx = tap // SIDE, tap % SIDE
        inside = (py + ky >= 0) & (py + ky < H) & (px + kx >= 0) & (px + kx < W)
        place = (corner + ky * W + kx)[:, None] * C + channels[None, :]
        value = tl.load(x + place, mask=ok & inside[:, None], other=-float("inf")).to(tl.float32)
        found = tl.where(value > best, tap, found).to(tl.int8)
        best = tl.maximum(best, value)
    place = rows[:, None] * C + channels[None, :]
    tl.store(y + place, best.to(y.dtype.element_ty), mask=ok)
    tl.store(which + place, found, mask=ok)


@triton.jit
def _window_pool_gradient(
    dy_, y, which, dx_, rows_all,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, MASK: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Each pixel's gradient: the sum over the windows whose largest it is. MASK: it came out of a ReLU."""
    rows = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)  # of the input
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
    py, px = rows // W % H + PAD, rows % W + PAD
    total = tl.zeros((BR, BC), tl.float32)
    for tap in range(SIDE * SIDE):
        oy, ox = py - tap // SIDE, px - tap % SIDE
        meets = (oy >= 0) & (ox >= 0) & (oy % STRIDE == 0) & (ox % STRIDE == 0)
        meets &= (oy < OH * STRIDE) & (ox < OW * STRIDE)
        source = (rows // (H * W) * OH + oy // STRIDE) * OW + ox // STRIDE
        place = source[:, None] * C + channels[None, :]
        here = ok & meets[:, None]
        largest = tl.load(which + place, mask=here, other=-1) == tap
        if MASK:
            largest &= tl.load(y + place, mask=here, other=0.0) > 0
        g = tl.load(dy_ + place, mask=here, other=0.0).to(tl.float32)
        total += tl.where(largest, g, 0.0)
    place = rows[:, None] * C + channels[None, :]
    tl.store(dx_ + place, total.to(dx_.dtype.element_ty), mask=ok)


@triton.jit
def _mean(x, y, PIXELS: tl.constexpr, C: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """Mean of one sample's pixels."""
    sample = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    total = tl.zeros((BP, BC), tl.float32)
    for start in range(0, PIXELS, BP):
        pixels = start + tl.arange(0, BP)
        ok = (pixels < PIXELS)[:, None] & (channels < C)[None, :]
        place = (sample * PIXELS + pixels)[:, None] * C + channels[None, :]
        total += tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) * (1.0 / PIXELS)
    tl.store(y + sample * C + channels, mean.to(y.dtype.element_ty), mask=channels < C)


@triton.jit
def _mean_gradient(
    dy_, x, dx_, rows_all,
    PIXELS: tl.constexpr, C: tl.constexpr, MASK: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Every pixel's share of its image's gradient. MASK: zero where the preceding ReLU was inactive."""
    rows = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
    source = (rows // PIXELS)[:, None] * C + channels[None, :]
    g = tl.load(dy_ + source, mask=ok, other=0.0).to(tl.float32) * (1.0 / PIXELS)
    place = rows[:, None] * C + channels[None, :]
    if MASK:
        g = tl.where(tl.load(x + place, mask=ok, other=0.0) > 0, g, 0.0)
    tl.store(dx_ + place, g.to(dx_.dtype.element_ty), mask=ok)
