"""FedSparsify-Global (Stripelis et al., 2022): merge, then purge the smallest weights at the server.

One magnitude threshold over all trainable tensors, biases and batch-norm scales included.
"""

from __future__ import annotations

from dataclasses import dataclass

from .purging import Gradual


@dataclass(frozen=True, kw_only=True)
class FedSparsifyGlobal(Gradual):
    """Clients fit under the global mask; the server averages and prunes by magnitude every F rounds."""
