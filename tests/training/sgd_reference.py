"""The SGD rule of this package in plain numpy: every implementation is held to this one function.

`test_sgd_rule.py` compares them; `docs/extending.md` lists the places that change when the rule does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """The settings of a step."""

    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    prox: float = 0.0


def sgd_step(
    weights: Doubles,
    gradient: Doubles,
    velocity: Doubles,
    anchor: Doubles,
    mask: NDArray[np.bool_],
    rule: Rule,
    linear: Doubles | float = 0.0,
) -> tuple[Doubles, Doubles, Doubles]:
    """Weights and velocity after one step, and the squared gradient that `Score` sums.

    The gradient is that of the loss: the square takes all of it, the step only what the mask keeps. `anchor` is the
    model that the proximal term pulls towards, `linear` the gradient of a linear term. The velocity is zero where
    the mask prunes.
    """
    squares = gradient**2
    step = np.where(mask, gradient + linear, 0) + rule.prox * (weights - anchor)
    velocity = rule.momentum * velocity + step
    step = step + rule.momentum * velocity if rule.nesterov else velocity
    return weights - rule.lr * step, velocity, squares
