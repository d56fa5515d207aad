"""Perceptrons on a CPU: each epoch of a client is one call of compiled code.

In: the layers of a perceptron and all samples, once; then one client's worker and request. Out: the client's update.
"""

from __future__ import annotations

from collections.abc import Sequence
from re import fullmatch

import numpy as np
import torch
from torch import nn

from ... import arrays
from ...errors import ModelError
from ...methods import Request, Score, Update
from ...model import Layout
from ...native.lines import zeros
from ...native.machine import lanes_here
from ..sequence import in_sequence
from ..settings import Training
from ..worker import Samples, Worker
from .kernel_code import PERCEPTRONS
from .layers import Linear, Workspace, fill

LETTERS: dict[type[nn.Module], str] = {nn.Flatten: "F", nn.Linear: "L", nn.ReLU: "R"}


def read_perceptron(module: nn.Module, layout: Layout) -> list[Linear] | None:
    """The layers of a network made of Flatten, Linear and ReLU in sequence; None for any other."""
    children = in_sequence(module)
    if children and isinstance(first := children[0][1], nn.Flatten) and (first.start_dim, first.end_dim) != (1, -1):
        return None
    if not fullmatch("F(LR*)*L", "".join(LETTERS.get(type(child), "?") for _, child in children)):
        return None
    begins = {name: place.start for name, place in layout.slices.items()}
    layers = []
    for (name, child), (_, after) in zip(children, [*children[1:], children[0]], strict=True):
        if isinstance(child, nn.Linear):
            places = begins[f"{name}.weight"], begins.get(f"{name}.bias")
            layers.append(Linear(child.in_features, child.out_features, *places, relu=isinstance(after, nn.ReLU)))
    return layers


class Perceptrons:
    """Trains the clients of one network. Each job slot has a workspace, which one thread uses at a time."""

    def __init__(self, layers: Sequence[Linear], samples: Samples, training: Training, lanes: int = 0) -> None:
        """ImportError where the kernels were never compiled and cannot be."""
        self._layers, self._training, self._lanes = layers, training, lanes or lanes_here()
        (self._epoch,) = PERCEPTRONS(self._lanes)
        self._x, self._y = samples.x.reshape(len(samples.x), -1), samples.y.to(torch.int64).contiguous()
        if self._x.stride(1) != 1:
            self._x = self._x.contiguous()
        seen = self._x.shape[1], self._x.dtype, int(self._y.min()) >= 0, int(self._y.max()) < layers[-1].outputs
        if seen != (layers[0].inputs, torch.float32, True, True):  # the kernels do not check bounds
            raise ModelError(f"the network does not take these samples. Received: {tuple(samples.x.shape)}.")
        self._workspaces: dict[int, Workspace] = {}

    def _workspace(self, slot: int) -> Workspace:
        if slot not in self._workspaces:
            training = self._training
            batch = min(training.batch_size, len(self._x))
            workspace = self._workspaces[slot] = Workspace(self._layers, batch, self._lanes)
            at = {"samples": self._x.data_ptr(), "stride": 4 * self._x.stride(0), "labels": self._y.data_ptr()}
            fill(workspace.epoch, **at, momentum=training.momentum, nesterov=training.nesterov)
            fill(workspace.epoch, decay=training.weight_decay, decays=bool(training.weight_decay))
            fill(workspace.epoch, smoothing=training.label_smoothing)
        return self._workspaces[slot]

    def train(self, slot: int, worker: Worker, request: Request, epochs: int) -> Update:
        """One client's answer."""
        workspace, model = self._workspace(slot), request.model.on_host()
        workspace.load(model.host_weights, model.host_mask)
        if request.prox:
            workspace.attach("anchor", model.host_weights)
            fill(workspace.epoch, prox=request.prox)
        if request.linear is not None:
            workspace.attach("linear", arrays.to_numpy(request.linear) * model.host_mask)
        if self._training.momentum:
            kept = worker.optimizer.get("momentum")
            workspace.attach("velocity", 0 if kept is None else kept.numpy() * model.mask)
        if isinstance(request, Score):
            workspace.attach("squares", 0)
        rates = worker.rates(epochs)
        step_rates = rates.astype(np.float32)
        rates_at = step_rates.ctypes.data
        exp_sums, margins = zeros(worker.samples), zeros(worker.samples)
        fill(workspace.epoch, exp_sums=exp_sums.ctypes.data, margins=margins.ctypes.data)
        for epoch in range(epochs):
            order = np.ascontiguousarray(worker.next_order(), np.int64)
            workspace.epoch["rates"] = rates_at + 4 * epoch * worker.steps_per_epoch
            self._epoch(workspace.epoch.ctypes.data, order.ctypes.data, order.size)
            worker.steps += worker.steps_per_epoch
        if self._training.momentum:
            worker.optimizer["momentum"] = torch.from_numpy(workspace.values("velocity"))
        values = workspace.values()
        trained = request.model.with_weights(
            arrays.placed(values, request.model.weights), bool(np.isfinite(values).all())
        )
        scores = workspace.values("squares") if isinstance(request, Score) else None
        loss = float(np.mean(np.log(exp_sums) + margins, dtype=np.float64))
        return Update(trained, worker.samples, loss, scores=scores, rates=float(rates.sum()))
