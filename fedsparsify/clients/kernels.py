"""Triton kernels for stacks of networks on a GPU. The only file that imports triton.

Activations are (models, rows, channels) with channels contiguous; a row is a pixel of an image, or a sample where there
are no pixels. Weights are (models, outputs, taps, inputs): a dense layer is a convolution of one tap. A 3×3 convolution
is an implicit product over its nine taps, so that shifted copies of the input are never written.

Every sum has a fixed order (partial results in a buffer, never atomics): the same seed gives the same bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _shift(tap, TAPS: tl.constexpr):
    """Rows and columns from a pixel to its neighbour under a tap of a 3×3 kernel."""
    if TAPS == 1:
        return tap, tap
    return tap // 3 - 1, tap % 3 - 1


@triton.jit
def _forward(
    x, w, b, y, rows_all,
    H: tl.constexpr, W: tl.constexpr, CX: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr,
    RELU: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Y = act(X ⊛ W + b) of one model: a tile of rows × outputs."""
    model = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    outs = tl.program_id(1) * BN + tl.arange(0, BN)
    x += model * rows_all * CX
    w += model * COUT * TAPS * CIN
    y += model * rows_all * COUT
    py, px = (rows // W) % H, rows % W
    inside = rows < rows_all
    KB: tl.constexpr = (CX + BK - 1) // BK
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(TAPS * KB):
        tap = i // KB
        ks = (i % KB) * BK + tl.arange(0, BK)
        dy, dx = _shift(tap * (TAPS > 1), TAPS)
        ok = inside & (py + dy >= 0) & (py + dy < H) & (px + dx >= 0) & (px + dx < W)
        source = rows + dy * W + dx
        a = tl.load(x + source[:, None] * CX + ks[None, :], mask=ok[:, None] & (ks < CX)[None, :], other=0.0)
        v = tl.load(
            w + outs[None, :] * (TAPS * CIN) + (tap * CIN + ks)[:, None],
            mask=(ks < CIN)[:, None] & (outs < COUT)[None, :],
            other=0.0,
        )
        acc = tl.dot(a, v, acc, input_precision=PREC)
    if BIAS:
        acc += tl.load(b + model * COUT + outs, mask=outs < COUT, other=0.0)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0)
    place = y + rows[:, None] * COUT + outs[None, :]
    tl.store(place, acc.to(y.dtype.element_ty), mask=inside[:, None] & (outs < COUT)[None, :])


@triton.jit
def _input_gradient(
    dy_, w, x, dx_, rows_all,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr,
    MASK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """dX = dY ⊛ Wᵀ, zero where the ReLU that made X was closed."""
    model = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    ins = tl.program_id(1) * BN + tl.arange(0, BN)
    dy_ += model * rows_all * COUT
    w += model * COUT * TAPS * CIN
    x += model * rows_all * CIN
    dx_ += model * rows_all * CIN
    py, px = (rows // W) % H, rows % W
    inside = rows < rows_all
    KB: tl.constexpr = (COUT + BK - 1) // BK
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(TAPS * KB):
        tap = i // KB
        ks = (i % KB) * BK + tl.arange(0, BK)
        dy, dx = _shift(tap * (TAPS > 1), TAPS)
        ok = inside & (py - dy >= 0) & (py - dy < H) & (px - dx >= 0) & (px - dx < W)
        source = rows - dy * W - dx
        a = tl.load(dy_ + source[:, None] * COUT + ks[None, :], mask=ok[:, None] & (ks < COUT)[None, :], other=0.0)
        v = tl.load(
            w + ks[:, None] * (TAPS * CIN) + (tap * CIN + ins)[None, :],
            mask=(ks < COUT)[:, None] & (ins < CIN)[None, :],
            other=0.0,
        )
        acc = tl.dot(a, v, acc, input_precision=PREC)
    place = rows[:, None] * CIN + ins[None, :]
    ok = inside[:, None] & (ins < CIN)[None, :]
    if MASK:
        acc = tl.where(tl.load(x + place, mask=ok, other=0.0) > 0, acc, 0.0)
    tl.store(dx_ + place, acc.to(dx_.dtype.element_ty), mask=ok)


@triton.jit
def _weight_gradient(
    dy_, x, dw, db, w, b, gone_w, gone_b, shadow, lr, rows_all, all_values,
    CHUNK: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CX: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    TAPS: tl.constexpr, BIAS: tl.constexpr, UPDATE: tl.constexpr, SHADOW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """dW of one tap and one chunk of rows: a tile of outputs × inputs.

    UPDATE: plain SGD in place of writing the gradient down. BIAS: db too, where a chunk is a single block of rows.
    """
    NB: tl.constexpr = (CIN + BN - 1) // BN
    tile, split, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    tap = tile % TAPS
    ins = (tile // TAPS) % NB * BN + tl.arange(0, BN)
    outs = tile // (TAPS * NB) * BM + tl.arange(0, BM)
    dy_ += model * rows_all * COUT
    x += model * rows_all * CX
    dy, dx = _shift(tap * (TAPS > 1), TAPS)
    start = split * CHUNK
    acc = tl.zeros((BM, BN), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for offset in range(0, CHUNK, BK):
        rows = start + offset + tl.arange(0, BK)
        inside = rows < rows_all
        py, px = (rows // W) % H, rows % W
        ok = inside & (py + dy >= 0) & (py + dy < H) & (px + dx >= 0) & (px + dx < W)
        source = rows + dy * W + dx
        g = tl.load(
            dy_ + rows[:, None] * COUT + outs[None, :], mask=inside[:, None] & (outs < COUT)[None, :], other=0.0
        )
        a = tl.load(x + source[:, None] * CX + ins[None, :], mask=ok[:, None] & (ins < CX)[None, :], other=0.0)
        acc = tl.dot(tl.trans(g), a, acc, input_precision=PREC)
        if BIAS:
            total += tl.sum(g.to(tl.float32), 0)
    own = model * (COUT * TAPS * CIN) + outs[:, None] * (TAPS * CIN) + (tap * CIN + ins)[None, :]
    here = (outs < COUT)[:, None] & (ins < CIN)[None, :]
    if UPDATE:
        gone = tl.load(gone_w + own, mask=here, other=1) != 0
        value = tl.load(w + own, mask=here, other=0.0)
        value = tl.where(gone, value, value - lr * acc)
        tl.store(w + own, value, mask=here)
        if SHADOW:
            tl.store(shadow + own, value.to(shadow.dtype.element_ty), mask=here)
    else:
        tl.store(dw + split * all_values + own, acc, mask=here)
    if BIAS:
        if tile % (TAPS * NB) == 0:
            at = model * COUT + outs
            if UPDATE:
                gone = tl.load(gone_b + at, mask=outs < COUT, other=1) != 0
                value = tl.load(b + at, mask=outs < COUT, other=0.0)
                tl.store(b + at, tl.where(gone, value, value - lr * total), mask=outs < COUT)
            else:
                tl.store(db + at, total, mask=outs < COUT)


@triton.jit
def _column_sums(
    x, sums, rows_all, CHUNK: tl.constexpr, C: tl.constexpr, SPLITS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """Sum over a chunk of rows, channel by channel."""
    split, model = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    x += model * rows_all * C
    total = tl.zeros((BR, BC), tl.float32)
    for offset in range(0, CHUNK, BR):
        rows = split * CHUNK + offset + tl.arange(0, BR)
        ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
        total += tl.load(x + rows[:, None] * C + channels[None, :], mask=ok, other=0.0).to(tl.float32)
    tl.store(sums + (model * SPLITS + split) * C + channels, tl.sum(total, 0), mask=channels < C)


@triton.jit
def _loss(
    logits, labels, rows_table, stride, d, losses,
    BATCH: tl.constexpr, CLASSES: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Cross entropy of one model's batch, summed up in `losses`, and the gradient of its mean by the logits."""
    model = tl.program_id(0)
    rows, classes = tl.arange(0, BB), tl.arange(0, BC)
    ok = (rows < BATCH)[:, None] & (classes < CLASSES)[None, :]
    place = (model * BATCH + rows[:, None]) * CLASSES + classes[None, :]
    z = tl.load(logits + place, mask=ok, other=-float("inf")).to(tl.float32)
    z = tl.where((rows < BATCH)[:, None], z, 0.0)
    sample = tl.load(rows_table + model * stride + rows, mask=rows < BATCH, other=0)
    label = tl.load(labels + sample, mask=rows < BATCH, other=0)
    top = tl.max(z, 1)
    e = tl.exp(z - top[:, None])
    total = tl.sum(e, 1)
    hit = classes[None, :] == label[:, None]
    loss = tl.log(total) + top - tl.sum(tl.where(hit, z, 0.0), 1)
    tl.store(losses + model, tl.load(losses + model) + tl.sum(tl.where(rows < BATCH, loss, 0.0), 0))
    gradient = (e / total[:, None] - hit.to(tl.float32)) / BATCH
    tl.store(d + place, gradient.to(d.dtype.element_ty), mask=ok)


@triton.jit
def _sgd(
    w, g, v, pruned, shadow, count, lr, momentum,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, SHADOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of SGD on whole buffers: mask, momentum, weights and their copy in the compute type."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    value, gradient = tl.load(w + i, mask=ok), tl.load(g + i, mask=ok)
    gone = tl.load(pruned + i, mask=ok, other=1) != 0
    gradient = tl.where(gone, 0.0, gradient)
    if MOMENTUM:
        speed = tl.load(v + i, mask=ok) * momentum + gradient
        tl.store(v + i, speed, mask=ok)
        gradient = gradient + momentum * speed if NESTEROV else speed
    value -= lr * gradient
    tl.store(w + i, value, mask=ok)
    if SHADOW:
        tl.store(shadow + i, value.to(shadow.dtype.element_ty), mask=ok)


@triton.jit
def _moments(
    x, sums, squares, rows_all,
    CHUNK: tl.constexpr, C: tl.constexpr, SPLITS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Σ (x − pivot) and Σ (x − pivot)² of a chunk of rows; the pivot is the model's first row, so nothing cancels."""
    split, model = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    x += model * rows_all * C
    pivot = tl.load(x + channels, mask=channels < C, other=0.0).to(tl.float32)
    first, second = tl.zeros((BR, BC), tl.float32), tl.zeros((BR, BC), tl.float32)
    for offset in range(0, CHUNK, BR):
        rows = split * CHUNK + offset + tl.arange(0, BR)
        ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
        value = tl.load(x + rows[:, None] * C + channels[None, :], mask=ok, other=0.0).to(tl.float32)
        value = tl.where(ok, value - pivot[None, :], 0.0)
        first += value
        second += value * value
    place = (model * SPLITS + split) * C + channels
    tl.store(sums + place, tl.sum(first, 0), mask=channels < C)
    tl.store(squares + place, tl.sum(second, 0), mask=channels < C)


@triton.jit
def _moments_end(
    x, sums, squares, centre, scale, running_mean, running_var, rows_all, eps, rate,
    C: tl.constexpr, SPLITS: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Join the chunks: the batch's mean and 1/deviation, and the running statistics."""
    model = tl.program_id(1).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    splits = tl.arange(0, BS)
    ok = channels < C
    both = (splits < SPLITS)[:, None] & ok[None, :]
    place = (model * SPLITS + splits[:, None]) * C + channels[None, :]
    first = tl.sum(tl.load(sums + place, mask=both, other=0.0), 0) / rows_all
    second = tl.sum(tl.load(squares + place, mask=both, other=0.0), 0) / rows_all
    mean = tl.load(x + model * rows_all * C + channels, mask=ok, other=0.0).to(tl.float32) + first
    variance = tl.maximum(second - first * first, 0.0)
    at = model * C + channels
    tl.store(centre + at, mean, mask=ok)
    tl.store(scale + at, 1 / tl.sqrt(variance + eps), mask=ok)
    unbiased = variance * (rows_all / (rows_all - 1.0))
    tl.store(running_mean + at, tl.load(running_mean + at, mask=ok) * (1 - rate) + mean * rate, mask=ok)
    tl.store(running_var + at, tl.load(running_var + at, mask=ok) * (1 - rate) + unbiased * rate, mask=ok)


@triton.jit
def _normalise(
    x, y, centre, scale, gamma, beta, rows_all, C: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """Y = act((X − mean) · scale · γ + β)."""
    model = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
    at = model * C + channels
    slope = tl.load(scale + at, mask=channels < C) * tl.load(gamma + at, mask=channels < C)
    shift = tl.load(beta + at, mask=channels < C) - tl.load(centre + at, mask=channels < C) * slope
    place = model * rows_all * C + rows[:, None] * C + channels[None, :]
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32) * slope[None, :] + shift[None, :]
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=ok)


@triton.jit
def _normalise_sums(
    dy_, x, centre, scale, sums, products, rows_all,
    CHUNK: tl.constexpr, C: tl.constexpr, SPLITS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Σ dY and Σ dY · x̂ of a chunk of rows, channel by channel."""
    split, model = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    at = model * C + channels
    mean = tl.load(centre + at, mask=channels < C, other=0.0)
    inverse = tl.load(scale + at, mask=channels < C, other=0.0)
    total, product = tl.zeros((BR, BC), tl.float32), tl.zeros((BR, BC), tl.float32)
    for offset in range(0, CHUNK, BR):
        rows = split * CHUNK + offset + tl.arange(0, BR)
        ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
        place = model * rows_all * C + rows[:, None] * C + channels[None, :]
        g = tl.load(dy_ + place, mask=ok, other=0.0).to(tl.float32)
        total += g
        product += g * (tl.load(x + place, mask=ok, other=0.0).to(tl.float32) - mean[None, :])
    place = (model * SPLITS + split) * C + channels
    tl.store(sums + place, tl.sum(total, 0), mask=channels < C)
    tl.store(products + place, tl.sum(product, 0) * inverse, mask=channels < C)


@triton.jit
def _normalise_gradient(
    dy_, x, dx_, centre, scale, gamma, beta_gradient, gamma_gradient, rows_all,
    C: tl.constexpr, MASK: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dX = γ · scale · (dY − mean dY − x̂ · mean(dY · x̂)), zero where the ReLU that made X was closed."""
    model = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
    at, here = model * C + channels, channels < C
    inverse = tl.load(scale + at, mask=here, other=0.0)
    mean_g = tl.load(beta_gradient + at, mask=here, other=0.0) / rows_all
    mean_p = tl.load(gamma_gradient + at, mask=here, other=0.0) / rows_all
    slope = tl.load(gamma + at, mask=here, other=0.0) * inverse
    place = model * rows_all * C + rows[:, None] * C + channels[None, :]
    g = tl.load(dy_ + place, mask=ok, other=0.0).to(tl.float32)
    value = tl.load(x + place, mask=ok, other=0.0).to(tl.float32)
    hat = (value - tl.load(centre + at, mask=here, other=0.0)[None, :]) * inverse[None, :]
    g = slope[None, :] * (g - mean_g[None, :] - hat * mean_p[None, :])
    if MASK:
        g = tl.where(value > 0, g, 0.0)
    tl.store(dx_ + place, g.to(dx_.dtype.element_ty), mask=ok)


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
    dy_, y, which, dx_, rows_all,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, MASK: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradient goes to the pixel that was largest; nowhere where the ReLU that made it was closed."""
    rows = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    OH: tl.constexpr = H // 2
    OW: tl.constexpr = W // 2
    ok = (rows < rows_all)[:, None] & (channels < C)[None, :]
    place = rows[:, None] * C + channels[None, :]
    g = tl.load(dy_ + place, mask=ok, other=0.0)
    if MASK:
        g = tl.where(tl.load(y + place, mask=ok, other=0.0) > 0, g, 0.0)
    found = tl.load(which + place, mask=ok, other=0)
    corner = (rows // (OH * OW) * H + rows // OW % OH * 2) * W + rows % OW * 2
    for j in tl.static_range(4):
        at = (corner + j // 2 * W + j % 2)[:, None] * C + channels[None, :]
        tl.store(dx_ + at, tl.where(found == j, g, 0.0).to(dx_.dtype.element_ty), mask=ok)


@triton.jit
def _gather(
    images, rows, stride, batch, top, left, flip, x, pixels,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, CX: tl.constexpr, MOVE: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Samples `rows` of (n, H, W, C) images as (…, H, W, CX), shifted and mirrored; zeros behind C."""
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
