"""Random (Stripelis et al., 2022, baseline): FedSparsify-Global with a random order in place of magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import FloatArray
from ..model import SparseModel
from ..scores import random_order
from .base import Gradual


@dataclass(frozen=True, kw_only=True)
class Random(Gradual):
    """Clients fit under the global mask; the server averages and prunes at random every F rounds."""

    def score(self, model: SparseModel, rng: np.random.Generator) -> FloatArray:
        """A random order of what is left."""
        return random_order(model, rng)
