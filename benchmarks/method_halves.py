"""What a round takes beside training: both halves of a method, and its messages. Seconds, for each method.

python benchmarks/method_halves.py [METHOD …] [--network resnet18] [--sparsity 0.95] [--device cpu] [--clients 10]

Ten clients answer with their model and some noise in place of training. Round 30 is one in which FedRTS and FedDST
adjust their masks; the others are medians of the rounds before it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from fedsparsify.federation.wired import Wired
from fedsparsify.methods import (
    METHODS,
    ClientContext,
    Method,
    Request,
    Score,
    ServerContext,
    Update,
    ask_client,
    run_client,
)
from fedsparsify.model import SparseModel
from fedsparsify.networks import build, model_of

ROUNDS = (27, 28, 29, 30)
ALL = 300  # rounds of the run
DEFAULT = ("fedavg", "fedsparsify-global", "topk", "sparsyfed", "ssfl", "fedrts", "feddst")


class Noisy:
    """Clients that add noise to what they are sent."""

    def __init__(self, model: SparseModel, clients: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.clients, size = clients, model.layout.trainable
        self._noise = [torch.randn(size, generator=generator) * 0.01 for _ in range(clients)]
        self._scores = [noise.numpy() for noise in self._noise]
        if not isinstance(model.weights, np.ndarray):
            self._noise = [noise.to(model.weights.device) for noise in self._noise]
        self.seconds = self.answering = 0.0

    def ask(self, method: Method, round: int, model: SparseModel, sent: object = None) -> Iterator[Update]:
        """The updates of all clients. `seconds`: of their halves; `answering`: of what stands for training."""
        updates = []
        self.seconds = self.answering = 0.0
        for client in range(self.clients):

            def answer(request: Request, client: int = client) -> Update:
                began = now(model)
                noise = self._noise[client]
                values = torch.as_tensor(request.model.trainable_weights) + noise
                values = values.numpy() if isinstance(request.model.weights, np.ndarray) else values
                made = Update(request.model.with_trainable(values), 500, 0.1, rates=1.0)
                if isinstance(request, Score):
                    made = Update(request.model, 500, 0.1, scores=self._scores[client])
                _ = made.model.finite, made.model.pruned
                self.answering += now(model) - began
                return made

            began, before = now(model), self.answering
            half = ask_client(method, round, model, ClientContext())
            updates.append(replace(run_client(half, answer), client=client))
            self.seconds += now(model) - began - (self.answering - before)
        yield from updates


def now(model: SparseModel) -> float:
    """The time, once a GPU has done what it was asked."""
    if isinstance(model.weights, torch.Tensor) and model.weights.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    """Time the methods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=DEFAULT)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=10)
    given = parser.parse_args()
    print(f"{'method':20s} clients  messages     merge   all (round 30: clients, messages, merge, all)")
    for name in given.methods:
        kind = METHODS[name]
        fields = {"sparsity": given.sparsity} if "sparsity" in kind.__dataclass_fields__ else {}
        method = kind(**fields, rounds=ALL)
        model = method.begin(model_of(build(given.network, (3, 32, 32), 10, 0)))
        if given.device != "cpu":
            model = model.beside(torch.zeros(0, device=given.device))
        clients = Noisy(model, given.clients)
        carrier, state, found = Wired(clients), {}, []
        for round in ROUNDS:
            began = now(model)
            answers = list(carrier.ask(method, round, model))
            asked = now(model) - clients.answering
            merged = method.merge(round, model, iter(answers), np.random.default_rng(0), ServerContext(state))
            model, state = merged if isinstance(merged, tuple) else (merged, state)
            ended = now(model) - clients.answering
            found.append((clients.seconds, asked - began - clients.seconds, ended - asked, ended - began))
        usual = [statistics.median(values) for values in zip(*found[:-1], strict=True)]
        print(
            f"{name:20s}",
            *(f"{value:8.2f}" for value in usual),
            " ",
            *(f"{value:8.2f}" for value in found[-1]),
            flush=True,
        )


if __name__ == "__main__":
    main()
