"""Other ways to train the clients of `gpu_steps.py`: the loop of a careful PyTorch user, torch.compile, torch.func.

Every side plays one round: all clients start from one model, take the same number of steps of plain SGD, and their
weights are averaged. Products are in the precision of the run (bf16: autocast); the loops' images have channels last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from fedsparsify import RunConfig
from fedsparsify.training.backends import Setup

Round = Callable[[int], None]


def sides_of(names: str, setup: Setup, config: RunConfig, clients: int) -> dict[str, Round]:
    """The sides with these names, separated by commas, or all."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision != "fp32"
    torch.backends.cudnn.benchmark = True
    wanted = list(SIDES) if names == "all" else names.split(",")
    return {name: SIDES[name](setup, config, clients) for name in wanted}


def autocast(config: RunConfig, device: torch.device) -> AbstractContextManager[object]:
    """What computes in the run's precision."""
    return torch.autocast(device.type, torch.bfloat16) if config.precision == "bf16" else nullcontext()


def shards(setup: Setup, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples and labels of every client, (clients, samples, …)."""
    x, y = setup.samples.x, setup.samples.y
    each = len(x) // clients
    return x[: each * clients].view(clients, each, *x.shape[1:]), y[: each * clients].view(clients, each)


def loop(setup: Setup, config: RunConfig, clients: int, mode: str | None = None) -> Round:
    """Client after client, by autograd; `mode`: through torch.compile."""
    module = setup.make().to(setup.device, memory_format=torch.channels_last).train()
    start = {name: value.clone() for name, value in module.state_dict().items()}
    called = module if mode is None else torch.compile(module, mode=mode)
    xs, ys = shards(setup, clients)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)

    def play(round: int) -> None:
        generator = torch.Generator(setup.device).manual_seed(round)
        mean = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in start.items()}
        for x, y in zip(xs, ys, strict=True):
            with torch.no_grad():
                module.load_state_dict(start)
            for _ in range(config.epochs):
                order = torch.randperm(len(x), generator=generator, device=setup.device)
                for rows in order.split(config.batch_size):
                    images = x[rows].contiguous(memory_format=torch.channels_last)
                    optimiser.zero_grad()
                    with autocast(config, setup.device):
                        loss = cross_entropy(called(images), y[rows])
                    loss.backward()
                    optimiser.step()
            for name, value in module.state_dict().items():
                mean[name] += value / clients

    return play


def mapped(setup: Setup, config: RunConfig, clients: int, compiled: bool = False) -> Round:
    """All clients at once: one functional step, mapped by torch.func."""
    module = setup.make().to(setup.device).train()
    tensors = {name: p.detach() for name, p in module.named_parameters()}
    buffers = dict(module.named_buffers())
    xs, ys = shards(setup, clients)

    def loss(weights: dict[str, torch.Tensor], held: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor):  # type: ignore[no-untyped-def]
        held = {name: value.clone() for name, value in held.items()}
        with autocast(config, setup.device):
            value = cross_entropy(functional_call(module, (weights, held), (x,)), y)
        return value, held

    step = vmap(grad(loss, has_aux=True), randomness="error")
    if compiled:
        step = torch.compile(step)

    def play(round: int) -> None:
        generator = torch.Generator(setup.device).manual_seed(round)
        weights = {name: value.expand(clients, *value.shape).clone() for name, value in tensors.items()}
        held = {name: value.expand(clients, *value.shape).clone() for name, value in buffers.items()}
        number = torch.arange(clients, device=setup.device)[:, None]
        for _ in range(config.epochs):
            draws = torch.rand(xs.shape[:2], generator=generator, device=setup.device)
            for rows in draws.argsort(1).split(config.batch_size, 1):
                gradients, held = step(weights, held, xs[number, rows], ys[number, rows])
                for name, gradient in gradients.items():
                    weights[name].sub_(gradient, alpha=0.01)
        _ = {name: value.mean(0) for name, value in weights.items()}

    return play


SIDES: dict[str, Callable[[Setup, RunConfig, int], Round]] = {
    "loop": loop,
    "loop-compiled": lambda setup, config, clients: loop(setup, config, clients, "default"),
    "loop-graphs": lambda setup, config, clients: loop(setup, config, clients, "reduce-overhead"),
    "vmap": mapped,
    "vmap-compiled": lambda setup, config, clients: mapped(setup, config, clients, True),
}
