"""Seconds a round on a CPU: our cohort beside the loop a PyTorch user would write, raw JAX and other simulators.

    python benchmarks/simulation.py [--repeats 5] [--others loop,loader,jax,fedjax,pfl,flower,blazefl,…] [--busy]
        [--protocol fashion|cnn|resnet18]

The shape is FashionMNIST's: `fc`, 10 clients × 6,000 samples, batch 32, 4 local epochs, plain SGD, random data. `cnn`
and `resnet18` are BlazeFL's benchmark, cut down for two cores: CIFAR-10's shape, two classes per client, 10 clients in
place of 100 with a small network, 500 samples and five epochs; five clients, 100 samples and one epoch with ResNet-18.
Every side is a process of its own that plays one round whenever it is told to; they take turns, so that a noisy machine
is noisy for all of them.
`--busy` keeps one core busy with another process throughout.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

PROTOCOL = os.environ.get("PROTOCOL", "fashion")  # that of `--protocol`, in every side's process
CLIENTS, SAMPLES, BATCH, EPOCHS, LR = {
    "fashion": (10, 6000, 32, 4, 0.02),
    "cnn": (10, 500, 50, 5, 0.02),
    "resnet18": (5, 100, 50, 1, 0.02),
}[PROTOCOL]
SHAPE = (1, 28, 28) if PROTOCOL == "fashion" else (3, 32, 32)


def data() -> tuple[np.ndarray, np.ndarray]:
    """Random pictures and labels, client after client; CIFAR's clients have two classes each."""
    rng = np.random.default_rng(0)
    x = rng.random((CLIENTS * SAMPLES, *SHAPE), np.float32)
    if PROTOCOL == "fashion":
        return x, rng.integers(0, 10, CLIENTS * SAMPLES)
    return x, (rng.integers(0, 2, CLIENTS * SAMPLES) + 2 * np.arange(CLIENTS).repeat(SAMPLES)) % 10


def network() -> Any:
    """The network of the protocol, as a torch module."""
    from torch import nn

    if PROTOCOL == "fashion":
        layers = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
        return nn.Sequential(*layers)
    if PROTOCOL == "resnet18":
        from fedsparsify.networks.resnet import ResNet18

        return ResNet18(3, 10, nn.BatchNorm2d)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def orders(round: int) -> np.ndarray:
    """Samples of every client, epoch by epoch, (clients, epochs, samples)."""
    rng = np.random.default_rng(round)
    return np.stack([[rng.permutation(SAMPLES) for _ in range(EPOCHS)] for _ in range(CLIENTS)])


def ours(pipe: Connection, sparsity: float = 0.0) -> None:
    """fedsparsify's simulator: one round of FedAvg, evaluation left out; of a model without its smallest weights."""
    from fedsparsify import RunConfig
    from fedsparsify.data import Dataset
    from fedsparsify.federation.simulated import Simulated
    from fedsparsify.scores import keep_top

    x, y = data()
    config = RunConfig(data="fashion-mnist", method="fedavg")
    if PROTOCOL != "fashion":
        sizes = {
            "clients": CLIENTS,
            "batch_size": BATCH,
            "epochs": EPOCHS,
            "lr": LR,
            "momentum": 0.0,
            "augment": "none",
        }
        config = RunConfig(data="cifar10", method="fedavg", network=network(), **sizes)
    federation = Simulated(config, Dataset("random", x, y, x[:10], y[:10]))
    model = federation.initial()
    if sparsity:
        model = model.under(keep_top(np.abs(model.trainable_weights), sparsity))
    rng = np.random.default_rng(0)
    for round in iter(pipe.recv, None):
        model = config.method.merge(round, model, federation.ask(config.method, round, model), rng)
        pipe.send("done")


def sparse(pipe: Connection) -> None:
    """Ours at a sparsity of 0.95: another model, which the other sides cannot train any faster."""
    ours(pipe, 0.95)


def loop(pipe: Connection) -> None:
    """A careful user's loop, without torch's DataLoader: client after client on one thread, which is its best."""
    import copy

    import torch
    from torch import nn

    torch.set_num_threads(1)
    x, y = (torch.from_numpy(array) for array in data())
    server = network()
    for round in iter(pipe.recv, None):
        mean = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in server.state_dict().items()}
        for client, epochs in enumerate(torch.from_numpy(orders(round))):
            module = copy.deepcopy(server)
            optimiser = torch.optim.SGD(module.parameters(), lr=LR)
            for order in epochs:
                for batch in (order + client * SAMPLES).split(BATCH):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
                    optimiser.step()
            for name, value in module.state_dict().items():
                mean[name] += value / CLIENTS
        server.load_state_dict(mean)
        pipe.send("done")


def jax(pipe: Connection) -> None:
    """Raw JAX: a scan over steps, mapped over clients, compiled; the last, smaller batch of an epoch apart."""
    import jax as j
    import jax.numpy as jnp

    x, y = data()
    x = jnp.asarray(x.reshape(CLIENTS, SAMPLES, 784))
    y = jnp.asarray(y.reshape(CLIENTS, SAMPLES))
    rng = np.random.default_rng(1)
    sizes = [(784, 128), (128, 128), (128, 10)]
    server = [(jnp.asarray(rng.normal(0, 0.05, s).astype(np.float32)), jnp.zeros(s[1])) for s in sizes]

    def loss(weights, xs, ys):  # type: ignore[no-untyped-def]
        h = xs
        for w, b in weights[:-1]:
            h = j.nn.relu(h @ w + b)
        logits = h @ weights[-1][0] + weights[-1][1]
        return -jnp.take_along_axis(j.nn.log_softmax(logits), ys[:, None], 1).mean()

    def step(weights, rows, xs, ys):  # type: ignore[no-untyped-def]
        gradient = j.grad(loss)(weights, xs[rows], ys[rows])
        return j.tree_util.tree_map(lambda w, g: w - LR * g, weights, gradient)

    def client(weights, xs, ys, order):  # type: ignore[no-untyped-def]
        full = SAMPLES // BATCH * BATCH

        def epoch(weights, row):  # type: ignore[no-untyped-def]
            body = row[:full].reshape(-1, BATCH)
            weights, _ = j.lax.scan(lambda w, rows: (step(w, rows, xs, ys), None), weights, body)
            return step(weights, row[full:], xs, ys), None

        return j.lax.scan(epoch, weights, order)[0]

    play = j.jit(lambda w, o: j.tree_util.tree_map(lambda v: v.mean(0), j.vmap(client, (None, 0, 0, 0))(w, x, y, o)))
    for round in iter(pipe.recv, None):
        server = j.block_until_ready(play(server, jnp.asarray(orders(round))))
        pipe.send("done")


def spin() -> None:
    """Keep one core busy."""
    while True:
        sum(range(100_000))


def main() -> None:
    """Take turns and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--others", default="loop")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--protocol", default="fashion", choices=("fashion", "cnn", "resnet18"))
    words = parser.parse_args()
    os.environ["PROTOCOL"] = words.protocol
    known = {"loop": loop, "jax": jax, "sparse": sparse}
    others = [name for name in words.others.split(",") if name]
    if not set(others) <= set(known):
        from other_simulators import SIDES

        known |= SIDES
    sides = {"ours": ours} | {name: known[name] for name in others}
    context = mp.get_context("spawn")
    if words.busy:
        context.Process(target=spin, daemon=True).start()
    pipes = {}
    for name, side in sides.items():
        pipes[name], end = context.Pipe()
        context.Process(target=side, args=(end,)).start()  # Flower's starts children of its own: not daemons
        end.close()  # a side that dies is heard
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round in range(1, words.repeats + 2):
        for name, pipe in pipes.items():
            began = time.perf_counter()
            pipe.send(round)
            pipe.recv()
            if round > 1:  # the first is for compilers and caches
                times[name].append(time.perf_counter() - began)
    for pipe in pipes.values():
        pipe.send(None)
    for name, taken in times.items():
        middle = statistics.median(taken)
        ratio = middle / statistics.median(times["ours"])
        print(f"{name:15s} {middle:7.2f} s a round (from {min(taken):.2f} to {max(taken):.2f})  {ratio:5.2f}×")


if __name__ == "__main__":
    main()
