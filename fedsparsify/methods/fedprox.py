"""FedProx (Li et al., 2020): the local objective gains μ/2 · ‖w − w_global‖².

Departure from the FedSparsify authors' code: the anchor is the model the client received, not zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from ..model import SparseModel
from ..options import option
from .base import Averaging
from .requests import Fit


@dataclass(frozen=True, kw_only=True)
class FedProx(Averaging):
    """Dense: clients fit with a pull towards the global model, the server takes the weighted mean."""

    mu: float = option(0.001, "strength μ of the proximal term")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mu >= 0:
            raise ConfigError(f"method.mu must not be negative. Received: {self.mu!r}.")

    def fit(self, model: SparseModel) -> Fit:
        """Training with the proximal term."""
        return Fit(model, prox=self.mu)
