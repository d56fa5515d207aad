"""The local training step of this package in plain numpy: every implementation is held to these functions.

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
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    sam: float = 0.0
    optimizer: str = "sgd"


def objective_gradient(
    weights: Doubles,
    gradient: Doubles,
    anchor: Doubles,
    mask: NDArray[np.bool_],
    rule: Rule,
    linear: Doubles | float = 0.0,
) -> Doubles:
    """The gradient that an optimiser is given: masked, with the terms that a method adds, and clipped.

    `anchor` is the model that the proximal term pulls towards, `linear` the gradient of a linear term.
    """
    step = np.where(mask, gradient + linear, 0) + rule.prox * (weights - anchor)
    return step * min(1.0, rule.clip_norm / (np.linalg.norm(step) + 1e-6)) if rule.clip_norm else step


def uphill(weights: Doubles, gradient: Doubles, mask: NDArray[np.bool_], rule: Rule) -> Doubles:
    """Where SAM takes the gradient that a step is given in place of the one at the weights."""
    way = np.where(mask, gradient, 0)
    return weights + rule.sam * way / (np.linalg.norm(way) + 1e-12)


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

    The gradient is that of the loss: the square takes all of it, the step only what the mask keeps. The velocity is
    zero where the mask prunes. Weight decay is a term of the gradient, and is not clipped.
    """
    squares = gradient**2
    step = objective_gradient(weights, gradient, anchor, mask, rule, linear) + rule.weight_decay * weights
    velocity = rule.momentum * velocity + step
    step = step + rule.momentum * velocity if rule.nesterov else velocity
    return weights - rule.lr * step, velocity, squares


def adam_step(
    weights: Doubles,
    gradient: Doubles,
    moments: tuple[Doubles, Doubles],
    steps: int,
    anchor: Doubles,
    mask: NDArray[np.bool_],
    rule: Rule,
    linear: Doubles | float = 0.0,
) -> tuple[Doubles, tuple[Doubles, Doubles]]:
    """Weights and moments after step number `steps`, counted from 1. Weight decay: of AdamW, it is no part of g."""
    g = objective_gradient(weights, gradient, anchor, mask, rule, linear)
    if rule.optimizer == "adamw":
        weights = weights * (1 - rule.lr * rule.weight_decay)
    else:
        g = g + rule.weight_decay * weights
    first = 0.9 * moments[0] + 0.1 * g
    second = 0.999 * moments[1] + 0.001 * g**2
    size = np.sqrt(second / (1 - 0.999**steps)) + 1e-8
    return weights - rule.lr * first / (1 - 0.9**steps) / size, (first, second)
