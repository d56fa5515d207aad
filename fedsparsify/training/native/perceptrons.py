"""Perceptrons on a CPU: every thread trains client after client, each epoch as one call of compiled code."""

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
from ...native.images import Kernels
from ...native.lines import zeros
from ...native.machine import lanes_here
from ..sequence import in_sequence
from ..settings import Training
from ..worker import Samples, Worker
from .layers import Linear, Memory, fill

LETTERS: dict[type[nn.Module], str] = {nn.Flatten: "F", nn.Linear: "L", nn.ReLU: "R"}
SOURCES = tuple(f"training/native/{name}.py" for name in ("kernels", "layers", "simd"))
KERNELS = Kernels("training", "fedsparsify.training.native.kernels", (3,), SOURCES)


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
            layers.append(Linear(child.in_features, child.out_features, *places, bent=isinstance(after, nn.ReLU)))
    return layers


class Perceptrons:
    """Trains the clients of one network. A bench is one thread's memory for the model in training."""

    def __init__(self, layers: Sequence[Linear], samples: Samples, training: Training, lanes: int = 0) -> None:
        """ImportError where the kernels were never compiled and cannot be."""
        self._layers, self._training, self._lanes = layers, training, lanes or lanes_here()
        (self._epoch,) = KERNELS(self._lanes)
        self._x, self._y = samples.x.reshape(len(samples.x), -1), samples.y.to(torch.int64).contiguous()
        if self._x.stride(1) != 1:
            self._x = self._x.contiguous()
        seen = self._x.shape[1], self._x.dtype, int(self._y.min()) >= 0, int(self._y.max()) < layers[-1].outputs
        if seen != (layers[0].inputs, torch.float32, True, True):  # the kernels would read whatever lies there
            raise ModelError(f"the network does not take these samples. Received: {tuple(samples.x.shape)}.")
        self._benches: dict[int, Memory] = {}

    def _bench(self, number: int) -> Memory:
        if number not in self._benches:
            training = self._training
            memory = self._benches[number] = Memory(self._layers, min(training.batch_size, len(self._x)), self._lanes)
            at = {"samples": self._x.data_ptr(), "stride": 4 * self._x.stride(0), "labels": self._y.data_ptr()}
            fill(memory.plan, **at, rate=training.lr, momentum=training.momentum, ahead=training.nesterov)
        return self._benches[number]

    def train(self, bench: int, worker: Worker, request: Request, epochs: int) -> Update:
        """One client's answer."""
        memory, model = self._bench(bench), request.model.on_host()
        memory.load(model.weights, model.mask)
        if request.prox:
            memory.beside("anchor", model.weights)
            fill(memory.plan, pull=request.prox)
        if self._training.momentum:
            memory.beside("velocity", 0 if worker.velocity is None else worker.velocity.numpy() * model.mask)
        if isinstance(request, Score):
            memory.beside("squares", 0)
        totals, gaps = zeros(worker.samples), zeros(worker.samples)
        fill(memory.plan, totals=totals.ctypes.data, gaps=gaps.ctypes.data)
        for _ in range(epochs):
            order = np.ascontiguousarray(worker.next_order(), np.int64)
            self._epoch(memory.plan.ctypes.data, order.ctypes.data, order.size)
            worker.steps += -(-order.size // self._training.batch_size)
        if self._training.momentum:
            worker.velocity = torch.from_numpy(memory.values("velocity"))
        values = memory.values()
        trained = request.model.with_weights(
            arrays.placed(values, request.model.weights), bool(np.isfinite(values).all())
        )
        scores = memory.values("squares") if isinstance(request, Score) else None
        loss = float(np.mean(np.log(totals) + gaps, dtype=np.float64))
        return Update(trained, worker.samples, loss, scores=scores)
