"""Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, 2019) on flat vectors, for one client and for stacks.

`tests/training/test_sgd_rule.py` holds it to the reference, and that one to torch's optimisers.
"""

from __future__ import annotations

from math import log

import torch

BETAS, EPSILON = (0.9, 0.999), 1e-8
STATE = ("first", "second", "steps")  # moments of each entry, and the number of steps that they were taken over


def adam_step(
    weights: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    steps: torch.Tensor,
    rate: torch.Tensor | float,
) -> None:
    """Take one step in place. `steps`, this one included, and `rate` are one number, or one per model."""
    first.lerp_(gradient, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    biases = [-torch.expm1(steps * log(beta)) for beta in BETAS]  # 1 − βᵗ, to the precision of float32
    denominator = (second / biases[1]).sqrt_().add_(EPSILON)
    weights.sub_(first / denominator * (rate / biases[0]))
