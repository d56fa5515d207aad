"""The SGD rule as one Triton kernel. `tests/training/test_sgd_rule.py` holds it to the reference.

In: weights, gradients, velocities and what else the rule reads of a whole stack, as flat buffers. Out: weights and
velocities, changed. The learning rate and the factor of the proximal term are read from memory: they change, and a
captured graph keeps the numbers that a kernel is called with.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _to_power(value, power):
    """|value|^power; zero at zero."""
    size = tl.abs(value)
    return tl.where(size > 0, tl.exp2(power * tl.log2(tl.where(size > 0, size, 1.0))), 0.0)


@triton.jit
def _sgd(
    w, g, v, anchor, linear, pruned, raised, shadow, count, rate, prox, momentum, decay, power,
    POWER: tl.constexpr,
    PROX: tl.constexpr, LINEAR: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr,
    SHADOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of SGD on whole buffers; the weights in the compute type too.

    POWER: w are the roots v of the network's values sign(v)·|v|^power where `raised`; g is the gradient of the values.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    value, gradient = tl.load(w + i, mask=ok), tl.load(g + i, mask=ok)
    if POWER:
        is_raised = tl.load(raised + i, mask=ok, other=0) != 0
        gradient *= tl.where(is_raised, power * _to_power(value, power - 1), 1.0)
    if PROX:
        gradient += tl.load(prox) * (value - tl.load(anchor + i, mask=ok))
    if LINEAR:
        gradient += tl.load(linear + i, mask=ok)
    is_pruned = tl.load(pruned + i, mask=ok, other=1) != 0
    gradient = tl.where(is_pruned, 0.0, gradient) + decay * value
    if MOMENTUM:
        velocity = tl.load(v + i, mask=ok) * momentum + gradient
        tl.store(v + i, velocity, mask=ok)
        gradient = gradient + momentum * velocity if NESTEROV else velocity
    value -= tl.load(rate) * gradient
    tl.store(w + i, value, mask=ok)
    if POWER:
        size = _to_power(value, power)
        value = tl.where(is_raised, tl.where(value < 0, -size, size), value)
    if SHADOW:
        tl.store(shadow + i, value.to(shadow.dtype.element_ty), mask=ok)
