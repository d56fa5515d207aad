"""How a client trains: the settings that a worker and every back end read.

They lie beside the code that reads them, and not in `config.py`, so that training does not depend on what a run is.
`config.RunConfig` inherits them. This module imports no torch, so that a config can be read where torch is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..options import option

OPTIMIZER = "optimizer."  # prefix of the names under which a client keeps the state of its local optimiser
MOMENTUM = f"{OPTIMIZER}momentum"
UNSET: Any = None  # "take the data set's preset"; typed Any so that a resolved config has plain types


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of local training. A `RunConfig` is one, with every value set."""

    loss: str = option(
        "cross-entropy", "what is minimised: cross-entropy (classes), bce (labels), mse, mae, huber or module:function"
    )
    epochs: int = option(4, "local epochs per round")
    batch_size: int = option(UNSET, "samples per step; the last, smaller batch of an epoch is kept")
    lr: float = option(UNSET, "learning rate of the local SGD")
    momentum: float = option(UNSET, "local momentum")
    nesterov: bool = option(UNSET, "Nesterov momentum")
    augment: Literal["none", "pad-crop-flip"] = option(UNSET, "augmentation of training images")
    precision: Literal["fp32", "tf32", "bf16"] = option(
        "fp32", "arithmetic of the training products; tf32 and bf16 need a GPU"
    )
    keep_optimizer: bool = option(False, "keep each client's momentum across rounds, as the paper's authors did")
    seed: int = option(1990, "seed of everything random: same seed, same bytes")
