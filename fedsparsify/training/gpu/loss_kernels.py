"""Triton kernels for the cross entropy of a stack of networks, alone or together with a small last layer.

In: logits (or the last layer's inputs and weights) and labels. Out: losses, and the gradient of the logits. The layout
is that of `product_kernels.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .product_kernels import _begin


@triton.jit
def _cross_entropy(z, labels, samples, rows, batch, classes, CLASSES: tl.constexpr, SMOOTHING: tl.constexpr):
    """Sum of a batch's losses, and the gradient of their mean by the logits z: zero outside the batch."""
    inside = rows < batch
    z = tl.where(inside[:, None], tl.where((classes < CLASSES)[None, :], z, -float("inf")), 0.0)
    label = tl.load(labels + tl.load(samples + rows, mask=inside, other=0), mask=inside, other=0)
    top = tl.max(z, 1)
    e = tl.exp(z - top[:, None])
    total = tl.sum(e, 1)
    hit = classes[None, :] == label[:, None]
    loss = tl.log(total) + top - tl.sum(tl.where(hit, z, 0.0), 1)
    target = hit.to(tl.float32)
    if SMOOTHING > 0:
        named = (classes < CLASSES)[None, :]
        target = target * (1 - SMOOTHING) + SMOOTHING / CLASSES
        loss = tl.log(total) + top - tl.sum(tl.where(named, target * tl.where(named, z, 0.0), 0.0), 1)
    gradient = tl.where(inside[:, None], (e / total[:, None] - target) / batch, 0.0)
    return tl.sum(tl.where(inside, loss, 0.0), 0), gradient


@triton.jit
def _loss(
    logits, labels, table, stride, d, losses, batch,
    CLASSES: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr, SMOOTHING: tl.constexpr,
):  # fmt: skip
    """Cross entropy of one model's batch, added to `losses`, and its gradient by the logits."""
    model = tl.program_id(0).to(tl.int64)
    classes = tl.arange(0, BC)
    total = tl.load(losses + model)
    for start in range(0, batch, BB):
        rows = start + tl.arange(0, BB)
        ok = (rows < batch)[:, None] & (classes < CLASSES)[None, :]
        place = (model * batch + rows[:, None]) * CLASSES + classes[None, :]
        z = tl.load(logits + place, mask=ok, other=0.0).to(tl.float32)
        loss, gradient = _cross_entropy(z, labels, table + model * stride, rows, batch, classes, CLASSES, SMOOTHING)
        total += loss
        tl.store(d + place, gradient.to(d.dtype.element_ty), mask=ok)
    tl.store(losses + model, total)


@triton.jit
def _last(
    x, w, b, labels, table, stride, d, dx_, losses, batch,
    CIN: tl.constexpr, CLASSES: tl.constexpr, BIAS: tl.constexpr, MASK: tl.constexpr, NEED: tl.constexpr,
    BB: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr, EARLY: tl.constexpr,
    SMOOTHING: tl.constexpr,
):  # fmt: skip
    """A small last layer of one model: its product, the loss, the gradient of the logits and that of the input."""
    _begin(EARLY)
    model = tl.program_id(0).to(tl.int64)
    rows, classes = tl.arange(0, BB), tl.arange(0, BC)
    here, named = (rows < batch)[:, None], classes < CLASSES
    x += model * batch * CIN
    dx_ += model * batch * CIN
    w += model * CLASSES * CIN
    z = tl.zeros((BB, BC), tl.float32)
    for k in range(0, CIN, BK):
        ks = k + tl.arange(0, BK)
        a = tl.load(x + rows[:, None] * CIN + ks[None, :], mask=here & (ks < CIN)[None, :], other=0.0)
        v = tl.load(w + classes[None, :] * CIN + ks[:, None], mask=(ks < CIN)[:, None] & named[None, :], other=0.0)
        z = tl.dot(a, v, z, input_precision=PREC)
    if BIAS:
        z += tl.load(b + model * CLASSES + classes, mask=named, other=0.0)[None, :]
    loss, gradient = _cross_entropy(z, labels, table + model * stride, rows, batch, classes, CLASSES, SMOOTHING)
    tl.store(losses + model, tl.load(losses + model) + loss)
    gradient = gradient.to(d.dtype.element_ty)
    place = (model * batch + rows[:, None]) * CLASSES + classes[None, :]
    tl.store(d + place, gradient, mask=here & named[None, :])
    if NEED:
        for k in range(0, CIN, BK):
            ks = k + tl.arange(0, BK)
            ok = here & (ks < CIN)[None, :]
            v = tl.load(w + classes[:, None] * CIN + ks[None, :], mask=named[:, None] & (ks < CIN)[None, :], other=0.0)
            g = tl.dot(gradient, v, input_precision=PREC)
            if MASK:
                g = tl.where(tl.load(x + rows[:, None] * CIN + ks[None, :], mask=ok, other=0.0) > 0, g, 0.0)
            tl.store(dx_ + rows[:, None] * CIN + ks[None, :], g.to(dx_.dtype.element_ty), mask=ok)
