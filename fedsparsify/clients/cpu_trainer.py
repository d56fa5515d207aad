"""Perceptrons on a CPU: every thread trains client after client, each epoch as one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from .. import arrays
from ..config import Training
from ..methods import Fit, Request, Update
from ..model import Layout
from ..native.images import Kernels
from ..native.machine import lanes_here
from .cpu_layers import PLAN, Linear, Memory, zeros
from .worker import Samples, Worker

FILES = ("cpu_kernels", "cpu_layers", "cpu_simd")
KERNELS = Kernels("training", "fedsparsify.clients.cpu_kernels", (3,), tuple(f"clients/{name}.py" for name in FILES))


def read_perceptron(module: nn.Module, layout: Layout) -> list[Linear] | None:
    """The layers of a network made of Flatten, Linear and ReLU in sequence, all trainable; None for any other."""
    children = list(module.named_children())
    if type(module) is not nn.Sequential or [type(child) for _, child in children[:2]] != [nn.Flatten, nn.Linear]:
        return None
    if type(children[-1][1]) is not nn.Linear or layout.statistics:
        return None
    begins = {name: place.start for name, place in layout.slices.items()}
    layers: list[Linear] = []
    for (name, child), (_, after) in zip(children[1:], [*children[2:], children[0]], strict=True):
        if type(child) is nn.Linear and f"{name}.weight" in begins:
            bent = type(after) is nn.ReLU
            weight, bias = begins[f"{name}.weight"], begins.get(f"{name}.bias")
            layers.append(Linear(child.in_features, child.out_features, weight, bias, bent))
        elif type(child) is not nn.ReLU:
            return None
    return layers


class Perceptrons:
    """Trains the clients of one network by plain SGD. A bench is one thread's memory for the model in training."""

    def __init__(self, layers: Sequence[Linear], samples: Samples, training: Training, lanes: int = 0) -> None:
        """ImportError where the kernels were never compiled and cannot be."""
        self._layers, self._training, self._lanes = layers, training, lanes or lanes_here()
        (self._epoch,) = KERNELS(self._lanes)
        self._x, self._y = samples.x.reshape(len(samples.x), -1), samples.y.to(torch.int64).contiguous()
        if not 0 <= int(self._y.min()) <= int(self._y.max()) < layers[-1].outputs:
            raise IndexError(f"labels must lie in [0, {layers[-1].outputs}).")
        self._benches: dict[int, Memory] = {}

    @staticmethod
    def answers(training: Training, request: Request) -> bool:
        """Whether the kernels can do what a request asks for."""
        return isinstance(request, Fit) and not request.prox and not training.momentum

    def train(self, bench: int, worker: Worker, request: Request, epochs: int) -> Update:
        """One client's answer."""
        memory = self._benches.get(bench)
        if memory is None:
            memory = self._benches[bench] = Memory(self._layers, self._training.batch_size, self._lanes)
        model = request.model.on_host()
        memory.load(model.weights, model.mask)
        totals, gaps = zeros(worker.samples), zeros(worker.samples)
        plan = np.zeros(1, PLAN)
        for name, value in {
            "layers": memory.layers.ctypes.data,
            "count": len(memory.layers),
            "samples": self._x.data_ptr(),
            "stride": 4 * self._x.stride(0),
            "labels": self._y.data_ptr(),
            "batch": self._training.batch_size,
            "ones": memory.ones,
            "totals": totals.ctypes.data,
            "gaps": gaps.ctypes.data,
            "rate": self._training.lr,
        }.items():
            plan[name] = value
        for _ in range(epochs):
            order = worker.next_order().astype(np.int64, copy=False)
            self._epoch(plan.ctypes.data, order.ctypes.data, order.size)
            worker.steps += -(-worker.samples // self._training.batch_size)
        values = memory.values()
        trained = request.model.with_weights(
            arrays.placed(values, request.model.weights), bool(np.isfinite(values).all())
        )
        return Update(trained, worker.samples, float(np.mean(np.log(totals) + gaps)))
