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
    dy_, x, dw, db, rows_all, chunk: tl.constexpr, all_values, all_biases,
    H: tl.constexpr, W: tl.constexpr, CX: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """dW of one tap and one chunk of rows: a tile of outputs × inputs; and db, by the programs of the first tile."""
    NB: tl.constexpr = (CIN + BN - 1) // BN
    tile, split, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    tap = tile % TAPS
    ins = (tile // TAPS) % NB * BN + tl.arange(0, BN)
    outs = tile // (TAPS * NB) * BM + tl.arange(0, BM)
    dy_ += model * rows_all * COUT
    x += model * rows_all * CX
    dy, dx = _shift(tap * (TAPS > 1), TAPS)
    first = tile % (TAPS * NB) == 0
    start = split * chunk
    acc = tl.zeros((BM, BN), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for offset in range(0, chunk, BK):
        rows = start + offset + tl.arange(0, BK)
        inside = (rows < rows_all) & (offset + tl.arange(0, BK) < chunk)
        py, px = (rows // W) % H, rows % W
        ok = inside & (py + dy >= 0) & (py + dy < H) & (px + dx >= 0) & (px + dx < W)
        source = rows + dy * W + dx
        g = tl.load(
            dy_ + rows[:, None] * COUT + outs[None, :], mask=inside[:, None] & (outs < COUT)[None, :], other=0.0
        )
        a = tl.load(x + source[:, None] * CX + ins[None, :], mask=ok[:, None] & (ins < CX)[None, :], other=0.0)
        acc = tl.dot(tl.trans(g), a, acc, input_precision=PREC)
        if BIAS:
            if first:
                total += tl.sum(g.to(tl.float32), 0)
    place = split * all_values + model * (COUT * TAPS * CIN)
    place = place + outs[:, None] * (TAPS * CIN) + (tap * CIN + ins)[None, :]
    tl.store(dw + place, acc, mask=(outs < COUT)[:, None] & (ins < CIN)[None, :])
    if BIAS:
        if first:
            tl.store(db + split * all_biases + model * COUT + outs, total, mask=outs < COUT)


@triton.jit
def _loss(logits, labels, d, losses, BATCH: tl.constexpr, CLASSES: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr):
    """Cross entropy of one model's batch, its mean, and the gradient by the logits."""
    model = tl.program_id(0)
    rows, classes = tl.arange(0, BB), tl.arange(0, BC)
    ok = (rows < BATCH)[:, None] & (classes < CLASSES)[None, :]
    place = (model * BATCH + rows[:, None]) * CLASSES + classes[None, :]
    z = tl.load(logits + place, mask=ok, other=-float("inf")).to(tl.float32)
    z = tl.where((rows < BATCH)[:, None], z, 0.0)
    label = tl.load(labels + model * BATCH + rows, mask=rows < BATCH, other=0)
    top = tl.max(z, 1)
    e = tl.exp(z - top[:, None])
    total = tl.sum(e, 1)
    hit = classes[None, :] == label[:, None]
    loss = tl.log(total) + top - tl.sum(tl.where(hit, z, 0.0), 1)
    tl.store(losses + model, tl.sum(tl.where(rows < BATCH, loss, 0.0), 0) / BATCH)
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
    x,
    mean,
    spread,
    rows_all,
    chunk: tl.constexpr,
    C: tl.constexpr,
    SPLITS: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """Mean and sum of squared deviations of a chunk of rows, channel by channel (Chan's update, block by block)."""
    split, model = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    x += model * rows_all * C
    centre, squares = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    seen = 0.0
    for offset in range(0, chunk, BR):
        rows = split * chunk + offset + tl.arange(0, BR)
        inside = (rows < rows_all) & (offset + tl.arange(0, BR) < chunk)
        ok = inside[:, None] & (channels < C)[None, :]
        block = tl.load(x + rows[:, None] * C + channels[None, :], mask=ok, other=0.0).to(tl.float32)
        n = tl.sum(inside.to(tl.float32), 0)
        here = tl.sum(block, 0) / tl.maximum(n, 1.0)
        off = tl.where(ok, block - here[None, :], 0.0)
        gap = here - centre
        both = tl.maximum(seen + n, 1.0)
        squares += tl.sum(off * off, 0) + gap * gap * (seen * n / both)
        centre += gap * (n / both)
        seen += n
    place = (model * SPLITS + split) * C + channels
    tl.store(mean + place, centre, mask=channels < C)
    tl.store(spread + place, squares, mask=channels < C)


@triton.jit
def _moments_end(
    mean, spread, centre_out, scale_out, running_mean, running_var, rows_all, chunk: tl.constexpr, eps, rate,
    C: tl.constexpr, SPLITS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Join the chunks: the batch's mean and 1/deviation, and the running statistics."""
    model = tl.program_id(1)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    ok = channels < C
    centre, squares = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    seen = 0.0
    for split in range(SPLITS):
        n = tl.maximum(tl.minimum(chunk, rows_all - split * chunk), 0).to(tl.float32)
        place = (model * SPLITS + split) * C + channels
        gap = tl.load(mean + place, mask=ok, other=0.0) - centre
        both = tl.maximum(seen + n, 1.0)
        squares += tl.load(spread + place, mask=ok, other=0.0) + gap * gap * (seen * n / both)
        centre += gap * (n / both)
        seen += n
    tl.store(centre_out + model * C + channels, centre, mask=ok)
    tl.store(scale_out + model * C + channels, 1 / tl.sqrt(squares / seen + eps), mask=ok)
    place = model * C + channels
    tl.store(running_mean + place, tl.load(running_mean + place, mask=ok) * (1 - rate) + centre * rate, mask=ok)
    unbiased = squares / tl.maximum(seen - 1, 1.0)
    tl.store(running_var + place, tl.load(running_var + place, mask=ok) * (1 - rate) + unbiased * rate, mask=ok)


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
    dy_, x, centre, scale, sums, products, rows_all, chunk: tl.constexpr,
    C: tl.constexpr, SPLITS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Σ dY and Σ dY · x̂ of a chunk of rows, channel by channel."""
    split, model = tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    at = model * C + channels
    mean = tl.load(centre + at, mask=channels < C, other=0.0)
    inverse = tl.load(scale + at, mask=channels < C, other=0.0)
    total, product = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for offset in range(0, chunk, BR):
        rows = split * chunk + offset + tl.arange(0, BR)
        inside = (rows < rows_all) & (offset + tl.arange(0, BR) < chunk)
        ok = inside[:, None] & (channels < C)[None, :]
        place = model * rows_all * C + rows[:, None] * C + channels[None, :]
        g = tl.load(dy_ + place, mask=ok, other=0.0).to(tl.float32)
        hat = (tl.load(x + place, mask=ok, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
        total += tl.sum(g, 0)
        product += tl.sum(tl.where(ok, g * hat, 0.0), 0)
    place = (model * SPLITS + split) * C + channels
    tl.store(sums + place, total, mask=channels < C)
    tl.store(products + place, product, mask=channels < C)


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
    images, rows, top, left, flip, x, pixels,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, CX: tl.constexpr, MOVE: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Samples `rows` of (n, H, W, C) images as (…, H, W, CX), shifted and mirrored; zeros behind C."""
    sample = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    channels = tl.arange(0, CX)
    source = tl.load(rows + sample)
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
