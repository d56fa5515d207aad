"""Triton kernels for group norm: a program normalises some groups of channels of one sample, in one launch each way.

The layout is that of `product_kernels.py`. A block holds whole groups: GROUPS of SIZE channels each.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _of_groups(values, SIZE: tl.constexpr, GROUPS: tl.constexpr, BC: tl.constexpr):
    """Each channel's sum over its group. Channels outside of the block are zero."""
    if GROUPS == 1:
        return tl.zeros((BC,), tl.float32) + tl.sum(values, 0)
    group = tl.arange(0, BC) // SIZE
    return tl.sum(tl.where(group[:, None] == group[None, :], values[None, :], 0.0), 1)


@triton.jit
def _group_norm(
    x, added, y, gamma, beta, centre, scale, batch, eps,
    PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr,
    ADD: tl.constexpr, RELU: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Y = act(x̂ · γ + β); ADD: plus another value, before the ReLU. Mean and 1/deviation are kept for the gradient."""
    sample = tl.program_id(0).to(tl.int64)
    inner = tl.arange(0, BC)
    channels = tl.program_id(1) * (GROUPS * SIZE) + inner
    here = (inner < GROUPS * SIZE) & (channels < C)
    start = sample * PIXELS * C
    total = tl.zeros((BP, BC), tl.float32)
    for first in range(0, PIXELS, BP):
        pixels = first + tl.arange(0, BP)
        ok = (pixels < PIXELS)[:, None] & here[None, :]
        place = start + pixels[:, None] * C + channels[None, :]
        total += tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    mean = _of_groups(tl.sum(total, 0), SIZE, GROUPS, BC) / (PIXELS * SIZE)
    total = tl.zeros((BP, BC), tl.float32)
    for first in range(0, PIXELS, BP):
        pixels = first + tl.arange(0, BP)
        ok = (pixels < PIXELS)[:, None] & here[None, :]
        place = start + pixels[:, None] * C + channels[None, :]
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
        value = tl.where(ok, value - mean[None, :], 0.0)
        total += value * value
    inverse = 1 / tl.sqrt(_of_groups(tl.sum(total, 0), SIZE, GROUPS, BC) / (PIXELS * SIZE) + eps)
    tl.store(centre + sample * C + channels, mean, mask=here)
    tl.store(scale + sample * C + channels, inverse, mask=here)
    at = sample // batch * C + channels
    slope = tl.load(gamma + at, mask=here, other=0.0) * inverse
    shift = tl.load(beta + at, mask=here, other=0.0) - mean * slope
    for first in range(0, PIXELS, BP):
        pixels = first + tl.arange(0, BP)
        ok = (pixels < PIXELS)[:, None] & here[None, :]
        place = start + pixels[:, None] * C + channels[None, :]
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32) * slope[None, :] + shift[None, :]
        if ADD:
            value += tl.load(added + place, mask=ok, other=0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + place, value.to(y.dtype.element_ty), mask=ok)


@triton.jit
def _group_norm_gradient(
    dy_, x, dx_, gamma, centre, scale, sums, products, batch,
    PIXELS: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr,
    MASK: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dX = γ · scale · dY less its part along 1 and x̂; MASK: zero where X's ReLU was inactive.

    Σ dY and Σ dY · x̂ of each channel of the sample are left for the gradients of shift and scale.
    """
    sample = tl.program_id(0).to(tl.int64)
    inner = tl.arange(0, BC)
    channels = tl.program_id(1) * (GROUPS * SIZE) + inner
    here = (inner < GROUPS * SIZE) & (channels < C)
    start = sample * PIXELS * C
    mean = tl.load(centre + sample * C + channels, mask=here, other=0.0)
    inverse = tl.load(scale + sample * C + channels, mask=here, other=0.0)
    weight = tl.load(gamma + sample // batch * C + channels, mask=here, other=0.0)
    total, product = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
    for first in range(0, PIXELS, BP):
        pixels = first + tl.arange(0, BP)
        ok = (pixels < PIXELS)[:, None] & here[None, :]
        place = start + pixels[:, None] * C + channels[None, :]
        g = tl.load(dy_ + place, mask=ok, other=0.0).to(tl.float32)
        total += g
        product += g * (tl.load(x + place, mask=ok, other=0.0).to(tl.float32) - mean[None, :])
    shifts, slopes = tl.sum(total, 0), tl.sum(product, 0) * inverse
    tl.store(sums + sample * C + channels, shifts, mask=here)
    tl.store(products + sample * C + channels, slopes, mask=here)
    mean_g = _of_groups(shifts * weight, SIZE, GROUPS, BC) / (PIXELS * SIZE)
    mean_p = _of_groups(slopes * weight, SIZE, GROUPS, BC) / (PIXELS * SIZE)
    for first in range(0, PIXELS, BP):
        pixels = first + tl.arange(0, BP)
        ok = (pixels < PIXELS)[:, None] & here[None, :]
        place = start + pixels[:, None] * C + channels[None, :]
        g = tl.load(dy_ + place, mask=ok, other=0.0).to(tl.float32)
        value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
        hat = (value - mean[None, :]) * inverse[None, :]
        g = inverse[None, :] * (weight[None, :] * g - mean_g[None, :] - hat * mean_p[None, :])
        if MASK:
            g = tl.where(value > 0, g, 0.0)
        tl.store(dx_ + place, g.to(dx_.dtype.element_ty), mask=ok)
