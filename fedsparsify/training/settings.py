"""How a client trains: the settings that a worker and every back end read.

They lie beside the code that reads them, and not in `config.py`, so that training does not depend on what a run is.
`config.RunConfig` inherits them. This module imports no torch, so that a config can be read where torch is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..options import option
from ..schedule import check_at_least, check_fraction
from .rates import RoundSchedule, StepSchedule, round_factor, step_factors

OPTIMIZER = "optimizer."  # prefix of the names under which a client keeps the state of its local optimiser
MOMENTUM = f"{OPTIMIZER}momentum"
UNSET: Any = None  # to be resolved by `RunConfig`; typed Any so that a resolved config has plain types
FINAL = 0.01  # the final factor of a schedule that names none


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of local training. A `RunConfig` is one, with every value set."""

    loss: str = option(
        "cross-entropy", "what is minimised: cross-entropy (classes), bce (labels), mse, mae, huber or module:function"
    )
    rounds: int = option(UNSET, "federation rounds T")
    epochs: int = option(4, "local epochs per round")
    batch_size: int = option(UNSET, "samples per step; the last, smaller batch of an epoch is kept")
    optimizer: Literal["sgd", "adam", "adamw"] = option(
        "sgd", "local optimiser; Adam and AdamW have betas 0.9 and 0.999"
    )
    lr: float = option(UNSET, "local learning rate", unset="the data set's; 0.001 for adam and adamw")
    momentum: float = option(UNSET, "local momentum of sgd")
    nesterov: bool = option(UNSET, "Nesterov momentum")
    weight_decay: float = option(
        UNSET, "weight decay: in the gradient for sgd and adam, decoupled for adamw", unset="0; 0.01 for adamw"
    )
    clip_norm: float = option(0.0, "gradients of a batch with a larger norm are scaled down to it; 0: none are")
    label_smoothing: float = option(UNSET, "share of each label that is spread over all classes, in [0, 1)", unset="0")
    lr_schedule: RoundSchedule = option(UNSET, "learning rate over the rounds", unset="constant")
    lr_final: float = option(
        UNSET, "factor of lr that the schedule reaches in the last round, in (0, 1]", unset=f"{FINAL}; 1 for constant"
    )
    lr_warmup: int = option(0, "rounds in which the learning rate rises linearly, before the schedule starts")
    lr_drops: int = option(UNSET, "drops of lr_schedule step, at equal distances", unset="2; 0 for other schedules")
    lr_schedule_local: StepSchedule = option("constant", "learning rate within a round, over a client's steps")
    lr_final_local: float = option(
        UNSET, "factor of the round's rate that a client's last step has, in (0, 1]", unset=f"{FINAL}; 1 for constant"
    )
    augment: Literal["none", "pad-crop-flip"] = option(UNSET, "augmentation of training images")
    precision: Literal["fp32", "tf32", "bf16"] = option(
        "fp32", "arithmetic of the training products; tf32 and bf16 need a GPU"
    )
    sam: float = option(
        0.0,
        "radius ρ of sharpness-aware minimisation: gradients are taken where the loss of the batch is highest near the "
        "weights, at twice the time; 0: at the weights",
    )
    fixed_norms: float = option(
        0.0,
        "share of the rounds, the last ones, in which batch norms normalise by the model's running statistics in "
        "place of the batch's (FixBN), in [0, 1]",
    )
    keep_optimizer: bool = option(
        False, "keep each client's momentum (or Adam's moments) across rounds, as the paper's authors did"
    )
    seed: int = option(1990, "seed of everything random: same seed, same bytes")

    def lr_at(self, round: int) -> float:
        """The learning rate of a round, counted from 1; within the round, the first step has it."""
        factor = round_factor(self.lr_schedule, round, self.rounds, self.lr_final, self.lr_warmup, self.lr_drops)
        return self.lr * factor

    def norms_fixed(self, round: int) -> bool:
        """Whether batch norms take the model's running statistics in a round, counted from 1."""
        return round > self.rounds - int(self.fixed_norms * self.rounds + 0.5)

    def rates(self, round: int, steps: int) -> NDArray[np.float64]:
        """The learning rate of each of the steps that a client takes for one request."""
        return self.lr_at(round) * step_factors(self.lr_schedule_local, steps, self.lr_final_local)

    def defaults(self) -> dict[str, Any]:
        """Values of settings that depend on other settings of local training, for those that a user leaves unset."""
        found: dict[str, Any] = {
            "weight_decay": 0.01 if self.optimizer == "adamw" else 0.0,
            "label_smoothing": 0.0,
            "lr_schedule": "constant",
            "lr_final": 1.0 if self.lr_schedule in (None, "constant") else FINAL,
            "lr_drops": 2 if self.lr_schedule == "step" else 0,
            "lr_final_local": 1.0 if self.lr_schedule_local == "constant" else FINAL,
        }
        return found if self.optimizer == "sgd" else found | {"lr": 0.001, "nesterov": False}

    def check_training(self) -> None:
        """Refuse values that are out of range or do not fit each other."""
        if not 0 < self.lr < float("inf"):
            raise ConfigError(f"lr must be positive. Received: {self.lr!r}.")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must lie in [0, 1). Received: {self.momentum!r}.")
        if self.optimizer != "sgd" and (self.momentum or self.nesterov):
            raise ConfigError(
                f"momentum and nesterov are settings of the optimizer sgd; {self.optimizer} has moments of its own. "
                f"Received: momentum {self.momentum!r}, nesterov {self.nesterov!r}."
            )
        for name in ("weight_decay", "clip_norm"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} must be 0 or more. Received: {getattr(self, name)!r}.")
        check_fraction("label_smoothing", self.label_smoothing)
        if self.label_smoothing and self.loss != "cross-entropy":
            raise ConfigError(
                f"label_smoothing is of the loss cross-entropy. "
                f"Received: {self.label_smoothing!r} with loss {self.loss!r}."
            )
        if not 0 <= self.sam < float("inf"):
            raise ConfigError(f"sam must be 0 or more. Received: {self.sam!r}.")
        if not 0 <= self.fixed_norms <= 1:
            raise ConfigError(f"fixed_norms must lie in [0, 1]. Received: {self.fixed_norms!r}.")
        for name, schedule in (("lr_final", self.lr_schedule), ("lr_final_local", self.lr_schedule_local)):
            final = getattr(self, name)
            if not 0 < final <= 1:
                raise ConfigError(f"{name} must lie in (0, 1]: it is a factor of lr. Received: {final!r}.")
            if schedule == "constant" and final != 1:
                setting = name.replace("final", "schedule")
                raise ConfigError(f"{name} needs a {setting} other than constant. Received: {final!r}.")
        self._check_rounds()

    def _check_rounds(self) -> None:
        check_at_least("lr_warmup", self.lr_warmup, 0)
        if self.lr_warmup >= self.rounds:
            raise ConfigError(
                f"lr_warmup must be less than the {self.rounds} rounds of the run. Received: {self.lr_warmup!r}."
            )
        if self.lr_schedule != "step" and self.lr_drops:
            raise ConfigError(f"lr_drops needs lr_schedule step. Received: {self.lr_drops!r}, {self.lr_schedule!r}.")
        if self.lr_schedule == "step" and not 1 <= self.lr_drops < self.rounds - self.lr_warmup:
            raise ConfigError(
                f"lr_drops must be at least 1 and less than the {self.rounds - self.lr_warmup} rounds of the schedule. "
                f"Received: {self.lr_drops!r}."
            )
