"""Perceptrons on a CPU: every thread trains client after client, each epoch as one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from .. import arrays
from ..config import Training
from ..errors import ModelError
from ..methods import Request, Score, Update
from ..model import Layout
from ..native.images import Kernels
from ..native.machine import lanes_here
from .cpu_layers import Linear, Memory
from .sequence import in_sequence
from .worker import Samples, Worker

FILES = ("cpu_kernels", "cpu_layers", "cpu_simd")
KERNELS = Kernels("training", "fedsparsify.clients.cpu_kernels", (3,), tuple(f"clients/{name}.py" for name in FILES))


def read_perceptron(module: nn.Module, layout: Layout) -> list[Linear] | None:
    """The layers of a network made of Flatten, Linear and ReLU in sequence; None for any other."""
    children = in_sequence(module)
    kinds = [type(child) for _, child in children]
    if (
        kinds[:2] != [nn.Flatten, nn.Linear]
        or kinds[-1] is not nn.Linear
        or not {nn.Linear, nn.ReLU}.issuperset(kinds[1:])
    ):
        return None
    begins = {name: place.start for name, place in layout.slices.items()}
    return [
        Linear(
            *(child.in_features, child.out_features, begins[f"{name}.weight"], begins.get(f"{name}.bias")),
            bent=nn.ReLU in kinds[k + 1 : k + 2],
        )
        for k, (name, child) in enumerate(children)
        if isinstance(child, nn.Linear)
    ]


class Perceptrons:
    """Trains the clients of one network. A bench is one thread's memory for the model in training."""

    def __init__(self, layers: Sequence[Linear], samples: Samples, training: Training, lanes: int = 0) -> None:
        """ImportError where the kernels were never compiled and cannot be."""
        self._layers, self._training, self._lanes = layers, training, lanes or lanes_here()
        (self._epoch,) = KERNELS(self._lanes)
        self._x, self._y = samples.x.reshape(len(samples.x), -1), samples.y.to(torch.int64).contiguous()
        shapes = self._x.shape[1], self._x.dtype, int(self._y.min()) >= 0, int(self._y.max()) < layers[-1].outputs
        if shapes != (layers[0].inputs, torch.float32, True, True):  # the kernels read where they are told to
            raise ModelError(f"the network does not take these samples. Received: {tuple(samples.x.shape)}.")
        self._benches: dict[int, Memory] = {}

    def _bench(self, number: int) -> Memory:
        if number not in self._benches:
            memory = self._benches[number] = Memory(self._layers, self._training.batch_size, self._lanes)
            settings = {
                "samples": self._x.data_ptr(),
                "stride": 4 * self._x.stride(0),
                "labels": self._y.data_ptr(),
                "rate": self._training.lr,
                "momentum": self._training.momentum,
                "ahead": self._training.nesterov,
            }
            for name, value in settings.items():
                memory.plan[name] = value
        return self._benches[number]

    def train(self, bench: int, worker: Worker, request: Request, epochs: int) -> Update:
        """One client's answer."""
        memory, model = self._bench(bench), request.model.on_host()
        memory.load(model.weights, model.mask)
        if request.prox:
            memory.beside("anchor", model.weights)
            memory.plan["pull"] = request.prox
        if self._training.momentum:
            memory.beside("velocity", 0 if worker.velocity is None else worker.velocity.numpy() * model.mask)
        if isinstance(request, Score):
            memory.beside("squares", 0)
        losses = np.zeros((2, worker.samples), np.float32)  # see cpu_layers.PLAN
        memory.plan["totals"], memory.plan["gaps"] = losses[0].ctypes.data, losses[1].ctypes.data
        for _ in range(epochs):
            order = np.ascontiguousarray(worker.next_order(), np.int64)
            self._epoch(memory.plan.ctypes.data, order.ctypes.data, order.size)
            worker.steps += -(-order.size // self._training.batch_size)
        if self._training.momentum:
            worker.velocity = torch.from_numpy(memory.values("velocity"))
        values = memory.values()
        values[~model.mask] = 0
        trained = request.model.with_weights(
            arrays.placed(values, request.model.weights), bool(np.isfinite(values).all())
        )
        scores = memory.values("squares") if isinstance(request, Score) else None
        return Update(trained, worker.samples, float(np.mean(np.log(losses[0]) + losses[1])), scores=scores)
