"""Random (Stripelis et al., 2022, baseline): FedSparsify-Global with a random order in place of magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..options import option
from .purging import Gradual


@dataclass(frozen=True, kw_only=True)
class Random(Gradual):
    """Clients fit under the global mask; the server averages and prunes at random every F rounds."""

    score: Literal["random"] = option("random", "the random order of this method")
