"""The SGD rule as one Triton kernel. `tests/training/test_sgd_rule.py` holds it to the reference.

In: weights, gradients, velocities, linear terms and pruned entries of a whole stack, as flat buffers. Out: the same
buffers, changed.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sgd(
    w, g, v, linear, pruned, shadow, count, lr, momentum,
    LINEAR: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, SHADOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of SGD on whole buffers: linear term, mask, momentum, weights and their copy in the compute type."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    value, gradient = tl.load(w + i, mask=ok), tl.load(g + i, mask=ok)
    if LINEAR:
        gradient += tl.load(linear + i, mask=ok)
    is_pruned = tl.load(pruned + i, mask=ok, other=1) != 0
    gradient = tl.where(is_pruned, 0.0, gradient)
    if MOMENTUM:
        velocity = tl.load(v + i, mask=ok) * momentum + gradient
        tl.store(v + i, velocity, mask=ok)
        gradient = gradient + momentum * velocity if NESTEROV else velocity
    value -= lr * gradient
    tl.store(w + i, value, mask=ok)
    if SHADOW:
        tl.store(shadow + i, value.to(shadow.dtype.element_ty), mask=ok)
