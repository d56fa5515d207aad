"""Server optimisers (Reddi et al., 2021): the mean of the clients' updates, taken as a gradient.

Δ is the mean of the clients' models minus the round's model. Momentum (Hsu et al., 2019): v ← βv + Δ, w ← w + ηv. The
adaptive ones: m ← βm + (1 − β)Δ, w ← w + η m / (√v + τ), with v as each defines it. Only trainable entries take part;
statistics are averaged.

Departure: v starts at zero, as in Flower; the paper asks for at least τ². There is no bias correction, as in the
paper; `server_bias_correction` adds the one of Flower's FedAdam.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..arrays import FloatArray, sign, square_root
from ..errors import ConfigError
from ..model import SparseModel
from ..state import State

ServerOptimizer: TypeAlias = Literal["sgd", "momentum", "adam", "yogi", "adagrad"]
ADAPTIVE = ("adam", "yogi", "adagrad")


def step(
    optimizer: ServerOptimizer,
    model: SparseModel,
    mean: SparseModel,
    state: State,
    lr: float,
    momentum: float,
    beta2: float,
    tau: float,
    bias_correction: int | None = None,
) -> tuple[SparseModel, State]:
    """The next model, and the optimiser's state. `bias_correction` is the round, if the rate is corrected."""
    delta = mean.trainable_weights - model.trainable_weights
    if optimizer == "sgd":
        return _moved(model, mean, lr * delta), {}
    first = state.get("momentum", 0.0)
    if optimizer == "momentum":
        velocity = momentum * first + delta
        return _moved(model, mean, lr * velocity), {"momentum": velocity}
    first = momentum * first + (1 - momentum) * delta
    second = _second(optimizer, state.get("variance", 0.0 * delta), delta * delta, beta2)
    if bias_correction is not None:
        lr *= (1 - beta2 ** (bias_correction + 1)) ** 0.5 / (1 - momentum ** (bias_correction + 1))
    return _moved(model, mean, lr * first / (square_root(second) + tau)), {"momentum": first, "variance": second}


def _second(optimizer: str, variance: FloatArray, squared: FloatArray, beta2: float) -> FloatArray:
    if optimizer == "adagrad":
        return variance + squared
    if optimizer == "yogi":
        return variance - (1 - beta2) * squared * sign(variance - squared)
    return beta2 * variance + (1 - beta2) * squared


def _moved(model: SparseModel, mean: SparseModel, by: FloatArray) -> SparseModel:
    return mean.with_trainable(model.trainable_weights + by)


def check(optimizer: str, lr: float | None, momentum: float, beta2: float, tau: float, bias_correction: bool) -> None:
    """Refuse settings out of range."""
    if lr is not None and not 0 < lr < float("inf"):
        raise ConfigError(f"method.server_lr must be positive. Received: {lr!r}.")
    for name, value in (("server_momentum", momentum), ("server_beta2", beta2)):
        if not 0 <= value < 1:
            raise ConfigError(f"method.{name} must lie in [0, 1). Received: {value!r}.")
    if not 0 < tau < float("inf"):
        raise ConfigError(f"method.server_tau must be positive. Received: {tau!r}.")
    if bias_correction and optimizer != "adam":
        raise ConfigError(
            f"method.server_bias_correction is of server_optimizer 'adam'. Received: {optimizer!r} with it."
        )
