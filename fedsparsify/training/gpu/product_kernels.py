"""Triton kernels for the products of a stack of networks: outputs, and gradients of inputs and weights.

Activations are (models, rows, channels) with channels contiguous; a row is a pixel of an image, or a sample where there
are no pixels. Weights are (models, outputs, taps, inputs): a dense layer is a convolution of one tap. A 3×3 convolution
is an implicit product over its nine taps, so that shifted copies of the input are never written.

H × W are the pixels of the input, OH × OW those of the output. A convolution has a kernel of SIDE × SIDE, moves by
STRIDE pixels and pads by PAD.

Every sum has a fixed order (partial results in a buffer, never atomics): the same seed gives the same bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda


def can_begin_early(capability: tuple[int, int]) -> bool:
    """Whether a GPU and this triton have programmatic dependent launch."""
    return torch.version.hip is None and capability >= (9, 0) and hasattr(cuda, "gdc_wait")


@triton.jit
def _begin(EARLY: tl.constexpr):
    """EARLY: this kernel was launched while the one before still ran. Allow the next launch, and wait for that one."""
    if EARLY:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()


@triton.jit
def _shift(tap, SIDE: tl.constexpr, PAD: tl.constexpr):
    """Rows and columns from an output's pixel to its neighbour under a tap."""
    if SIDE == 1:
        return tap, tap
    return tap // SIDE - PAD, tap % SIDE - PAD


@triton.jit
def _corner(
    rows, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """The input's pixel that outputs are made around: its place in the image, and its row."""
    py, px = (rows // OW) % OH, rows % OW
    if STRIDE == 1 and H == OH and W == OW:
        return py, px, rows
    return py * STRIDE, px * STRIDE, (rows // (OH * OW) * H + py * STRIDE) * W + px * STRIDE


@triton.jit
def _forward(
    x, w, b, y, table, stride, rows_all, rows_in,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    CX: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    TABLE: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Y = act(X ⊛ W + b) of one model: a tile of rows × outputs. TABLE: X is all samples, a table names the rows."""
    _begin(EARLY)
    TAPS: tl.constexpr = SIDE * SIDE
    if STRIDE == 1 and H == OH and W == OW:
        rows_in = rows_all
    model = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    outs = tl.program_id(1) * BN + tl.arange(0, BN)
    w += model * COUT * TAPS * CIN
    y += model * rows_all * COUT
    py, px, first = _corner(rows, H, W, OH, OW, STRIDE)
    inside = rows < rows_all
    if TABLE:
        first = tl.load(table + model * stride + rows, mask=inside, other=0)
    else:
        x += model * rows_in * CX
    KB: tl.constexpr = (CX + BK - 1) // BK
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(TAPS * KB):
        tap = i // KB
        ks = (i % KB) * BK + tl.arange(0, BK)
        dy, dx = _shift(tap * (TAPS > 1), SIDE, PAD)
        ok = inside & (py + dy >= 0) & (py + dy < H) & (px + dx >= 0) & (px + dx < W)
        source = first + dy * W + dx
        a = tl.load(x + source[:, None] * CX + ks[None, :], mask=ok[:, None] & (ks < CX)[None, :], other=0.0)
        v = tl.load(
            w + outs[None, :] * (TAPS * CIN) + (tap * CIN + ks)[:, None],
            mask=(ks < CIN)[:, None] & (outs < COUT)[None, :],
            other=0.0,
        )
        acc = tl.dot(a.to(v.dtype), v, acc, input_precision=PREC)
    if BIAS:
        acc += tl.load(b + model * COUT + outs, mask=outs < COUT, other=0.0)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0)
    place = y + rows[:, None] * COUT + outs[None, :]
    tl.store(place, acc.to(y.dtype.element_ty), mask=inside[:, None] & (outs < COUT)[None, :])


@triton.jit
def _input_gradient(
    dy_, w, x, more, dx_, sums, rows_all, rows_in,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    CIN: tl.constexpr, COUT: tl.constexpr, MASK: tl.constexpr, SUMS: tl.constexpr, MORE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """dX = dY ⊛ Wᵀ, zero where the ReLU that made X was inactive. SUMS: its column sums too, by blocks of rows.

    MORE: another gradient of X is added. With a stride, pixels whose places have the same remainders are met by the
    same taps: a program computes pixels of one such phase, so that no product is one with zeros.
    """
    _begin(EARLY)
    SAME: tl.constexpr = STRIDE == 1 and H == OH and W == OW
    if SAME:
        rows_in = rows_all
    model = tl.program_id(2).to(tl.int64)
    ins = tl.program_id(1) * BN + tl.arange(0, BN)
    dy_ += model * rows_all * COUT
    w += model * COUT * SIDE * SIDE * CIN
    x += model * rows_in * CIN
    dx_ += model * rows_in * CIN
    KB: tl.constexpr = (COUT + BK - 1) // BK
    acc = tl.zeros((BM, BN), tl.float32)
    if SAME:
        rows = tl.program_id(0) * BM + tl.arange(0, BM)
        py, px = (rows // W) % H, rows % W
        inside = rows < rows_in
        for i in range(SIDE * SIDE * KB):
            tap = i // KB
            ks = (i % KB) * BK + tl.arange(0, BK)
            dy, dx = _shift(tap * (SIDE > 1), SIDE, PAD)
            ok = inside & (py - dy >= 0) & (py - dy < H) & (px - dx >= 0) & (px - dx < W)
            source = rows - dy * W - dx
            a = tl.load(dy_ + source[:, None] * COUT + ks[None, :], mask=ok[:, None] & (ks < COUT)[None, :], other=0.0)
            v = tl.load(
                w + ks[:, None] * (SIDE * SIDE * CIN) + (tap * CIN + ins)[None, :],
                mask=(ks < COUT)[:, None] & (ins < CIN)[None, :],
                other=0.0,
            )
            acc = tl.dot(a, v, acc, input_precision=PREC)
    else:
        PH: tl.constexpr = (H + STRIDE - 1) // STRIDE
        PW: tl.constexpr = (W + STRIDE - 1) // STRIDE
        tiles = tl.num_programs(0) // (STRIDE * STRIDE)
        phase = tl.program_id(0) // tiles
        at = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
        py = at // PW % PH * STRIDE + phase // STRIDE
        px = at % PW * STRIDE + phase % STRIDE
        sample = at // (PH * PW)
        rows = (sample * H + py) * W + px
        inside = (sample * (H * W) < rows_in) & (py < H) & (px < W)
        top, left = (phase // STRIDE + PAD) % STRIDE, (phase % STRIDE + PAD) % STRIDE  # the first tap that meets it
        high, wide = (SIDE - top + STRIDE - 1) // STRIDE, (SIDE - left + STRIDE - 1) // STRIDE  # how many do
        for i in range(high * wide * KB):
            ks = (i % KB) * BK + tl.arange(0, BK)
            ky, kx = top + i // KB // wide * STRIDE, left + i // KB % wide * STRIDE
            oy, ox = py + PAD - ky, px + PAD - kx
            ok = inside & (oy >= 0) & (oy < OH * STRIDE) & (ox >= 0) & (ox < OW * STRIDE)
            source = (sample * OH + oy // STRIDE) * OW + ox // STRIDE
            a = tl.load(dy_ + source[:, None] * COUT + ks[None, :], mask=ok[:, None] & (ks < COUT)[None, :], other=0.0)
            v = tl.load(
                w + ks[:, None] * (SIDE * SIDE * CIN) + ((ky * SIDE + kx) * CIN + ins)[None, :],
                mask=(ks < COUT)[:, None] & (ins < CIN)[None, :],
                other=0.0,
            )
            acc = tl.dot(a, v, acc, input_precision=PREC)
    place = rows[:, None] * CIN + ins[None, :]
    ok = inside[:, None] & (ins < CIN)[None, :]
    if MORE:
        acc += tl.load(more + model * rows_in * CIN + place, mask=ok, other=0.0).to(tl.float32)
    if MASK:
        acc = tl.where(tl.load(x + place, mask=ok, other=0.0) > 0, acc, 0.0)
    if SUMS:
        block = model * tl.num_programs(0) + tl.program_id(0)
        tl.store(sums + block * CIN + ins, tl.sum(acc, 0), mask=ins < CIN)
    tl.store(dx_ + place, acc.to(dx_.dtype.element_ty), mask=ok)


@triton.jit
def _weight_gradient(
    dy_, x, dw, db, w, b, pruned_w, pruned_b, shadow, table, stride, rates, decay, limits, rows_all, rows_in,
    all_values, CHUNK: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    CX: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    TABLE: tl.constexpr, BIAS: tl.constexpr, UPDATE: tl.constexpr, SHADOW: tl.constexpr, LARGEST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """dW of one tap and one chunk of rows: a tile of outputs × inputs.

    UPDATE: take a step of plain SGD instead of writing the gradient, at the model's learning rate. BIAS: db too, where
    a chunk is one block of rows. LARGEST: inputs below the model's limit count as zeros.
    """
    _begin(EARLY)
    TAPS: tl.constexpr = SIDE * SIDE
    if STRIDE == 1 and H == OH and W == OW:
        rows_in = rows_all
    NB: tl.constexpr = (CIN + BN - 1) // BN
    tile, split, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    tap = tile % TAPS
    ins = (tile // TAPS) % NB * BN + tl.arange(0, BN)
    outs = tile // (TAPS * NB) * BM + tl.arange(0, BM)
    dy_ += model * rows_all * COUT
    if not TABLE:
        x += model * rows_in * CX
    dy, dx = _shift(tap * (TAPS > 1), SIDE, PAD)
    start = split * CHUNK
    acc = tl.zeros((BM, BN), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for offset in range(0, CHUNK, BK):
        rows = start + offset + tl.arange(0, BK)
        inside = rows < rows_all
        py, px, first = _corner(rows, H, W, OH, OW, STRIDE)
        ok = inside & (py + dy >= 0) & (py + dy < H) & (px + dx >= 0) & (px + dx < W)
        source = first + dy * W + dx
        if TABLE:
            source = tl.load(table + model * stride + rows, mask=inside, other=0)
        g = tl.load(
            dy_ + rows[:, None] * COUT + outs[None, :], mask=inside[:, None] & (outs < COUT)[None, :], other=0.0
        )
        a = tl.load(x + source[:, None] * CX + ins[None, :], mask=ok[:, None] & (ins < CX)[None, :], other=0.0)
        if LARGEST:
            a = tl.where(tl.abs(a.to(tl.float32)) >= tl.load(limits + model), a, 0.0).to(a.dtype)
        acc = tl.dot(tl.trans(g), a.to(g.dtype), acc, input_precision=PREC)
        if BIAS:
            total += tl.sum(g.to(tl.float32), 0)
    own = model * (COUT * TAPS * CIN) + outs[:, None] * (TAPS * CIN) + (tap * CIN + ins)[None, :]
    here = (outs < COUT)[:, None] & (ins < CIN)[None, :]
    if UPDATE:
        lr = tl.load(rates + model)
        pruned = tl.load(pruned_w + own, mask=here, other=1) != 0
        value = tl.load(w + own, mask=here, other=0.0)
        value = tl.where(pruned, value, value - lr * (acc + decay * value))
        tl.store(w + own, value, mask=here)
        if SHADOW:
            tl.store(shadow + own, value.to(shadow.dtype.element_ty), mask=here)
    else:
        tl.store(dw + split * all_values + own, acc, mask=here)
    if BIAS:
        if tile % (TAPS * NB) == 0:
            at = model * COUT + outs
            if UPDATE:
                bias_pruned = tl.load(pruned_b + at, mask=outs < COUT, other=1) != 0
                bias = tl.load(b + at, mask=outs < COUT, other=0.0)
                tl.store(b + at, tl.where(bias_pruned, bias, bias - lr * (total + decay * bias)), mask=outs < COUT)
            else:
                tl.store(db + at, total, mask=outs < COUT)


@triton.jit
def _column_sums(x, sums, rows_all, chunk, c, BR: tl.constexpr, BC: tl.constexpr):
    """Sum over a chunk of rows, channel by channel."""
    split, model = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    x += model * rows_all * c
    total = tl.zeros((BR, BC), tl.float32)
    for offset in range(0, chunk, BR):
        rows = split * chunk + offset + tl.arange(0, BR)
        ok = (rows < rows_all)[:, None] & (channels < c)[None, :]
        total += tl.load(x + rows[:, None] * c + channels[None, :], mask=ok, other=0.0).to(tl.float32)
    tl.store(sums + (model * tl.num_programs(1) + split) * c + channels, tl.sum(total, 0), mask=channels < c)
