"""Powerpropagation (Schwarz et al., 2021): weights v are trained, of which the network takes sign(v)·|v|^β."""

from __future__ import annotations

import numpy as np
import torch

from ..model import Layout
from ..scores import weight_tensors


class Powered:
    """The weights behind a network's values: powers in weight tensors, the same elsewhere."""

    def __init__(self, values: torch.Tensor, layout: Layout, power: float) -> None:
        self._values, self._power = values, power
        exponents = np.where(weight_tensors(layout), np.float32(power), np.float32(1))
        self._exponents = torch.from_numpy(exponents).to(values.device)
        self.weights = values.sign() * values.abs().pow(1 / self._exponents)

    def to_weights(self, gradient: torch.Tensor) -> None:
        """Turn the gradient of the values into that of the weights: times β·|v|^(β − 1)."""
        gradient.mul_(self._exponents).mul_(self.weights.abs().pow(self._exponents - 1))

    def to_values(self) -> None:
        """After a step: give the network the powers of the weights."""
        torch.mul(self.weights.sign(), self.weights.abs().pow(self._exponents), out=self._values)
