"""Corrections of client drift: terms that a client adds to its loss, from what it and the server remember.

FedDyn (Acar et al., 2021): client i remembers g_i and trains on L(w) − ⟨g_i, w⟩ + α/2 ‖w − w_t‖²; then
g_i ← g_i − α(w_i − w_t). The server remembers h ← h − α/N Σ(w_i − w_t), and gives the mean of the models − h/α.
Nothing is sent beside the models.

SCAFFOLD (Karimireddy et al., 2020, option II): every gradient gains c − c_i; then c_i ← c_i − c + (w_t − w_i) / Σ lr,
with Σ lr over the client's steps. A client sends how much c_i changed, the server sends c, which moves by the sum of
the changes over N.

In both, clients count equally, as their papers have it. Both are defined for plain SGD: with local momentum the term
(w_t − w_i) / Σ lr is larger than a mean gradient by up to 1 / (1 − momentum).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from ..arrays import Array, float32, float64
from ..model import SparseModel
from ..state import State
from .context import ClientContext, ServerContext
from .requests import Fit, Update

Correction: TypeAlias = Literal["none", "feddyn", "scaffold"]
CONTROL = "control"  # g_i and h of FedDyn, c_i and c of SCAFFOLD


def corrected(correction: Correction, fit: Fit, me: ClientContext, alpha: float) -> Fit:
    """The request with the correction's terms."""
    if correction == "feddyn":
        mine = me.state.get(CONTROL)
        return replace(fit, prox=fit.prox + alpha, linear=None if mine is None else -mine)
    zero = 0.0 * fit.model.trainable_weights
    return replace(fit, linear=me.received.get(CONTROL, zero) - me.state.get(CONTROL, zero))


def remembered(correction: Correction, model: SparseModel, update: Update, me: ClientContext, alpha: float) -> Update:
    """The update with what the client keeps, and sends."""
    mine = me.state.get(CONTROL, 0.0)
    moved = update.model.trainable_weights - model.trainable_weights
    if correction == "feddyn":
        return update.keep(control=mine - alpha * moved)
    change = -moved / update.rates - me.received.get(CONTROL, 0.0)
    return update.keep(control=mine + change).send(control=change)


class Received:
    """The updates as they pass, each counted once, with the sum of what clients sent beside their models."""

    def __init__(self, updates: Iterable[Update]) -> None:
        self._updates = updates
        self.count = 0
        self.change: Array = np.zeros(())

    def __iter__(self) -> Iterator[Update]:
        for update in self._updates:
            self.count += 1
            if CONTROL in update.sent:
                change = float64(update.sent[CONTROL])
                self.change = change if self.count == 1 else self.change + change
            yield replace(update, samples=1)


def server_step(
    correction: Correction,
    model: SparseModel,
    mean: SparseModel,
    received: Received,
    server: ServerContext,
    alpha: float,
) -> tuple[SparseModel, State]:
    """The mean with the server's part of the correction, and what the server remembers."""
    control = server.state.get(CONTROL, 0.0)
    if correction == "scaffold":
        return mean, {CONTROL: control + float32(received.change / server.clients)}
    moved = mean.trainable_weights - model.trainable_weights
    control = control - alpha * received.count / server.clients * moved
    return mean.with_trainable(mean.trainable_weights - control / alpha), {CONTROL: control}
