"""How long one client's training step takes on this machine: by its back end, and by PyTorch's usual loop.

In: a network, a model of it and a batch size. Out: milliseconds of a step, side by side, and the back end's name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np
import torch

from ..errors import ModelError
from ..methods import Fit
from ..model import SparseModel
from ..networks import build
from .backends import Setup, choose
from .inputs import Samples
from .settings import Training
from .worker import Worker

STEPS = 3  # of PyTorch in a turn, and in an epoch of ours
EPOCHS = 6  # of ours in a turn: what a round does once per client is not a step's
OURS = "fedsparsify"


@dataclass(frozen=True)
class StepSpeed:
    """Medians of a step, and which back end took ours."""

    milliseconds: dict[str, float]  # by side
    backend: str


def compare_steps(
    network: str,
    model: SparseModel,
    shape: tuple[int, ...],
    classes: int,
    training: Training,
    seconds: float,
    show: Callable[[float], None] = lambda done: None,
) -> StepSpeed:
    """Time steps on random samples for some seconds; all sides take turns, with one thread each.

    `show` is told the seconds done, after the compilation and a first turn of every side.
    """
    rng, device = np.random.default_rng(0), torch.device("cpu")
    x = rng.standard_normal((STEPS * training.batch_size, *shape), np.float32)
    samples = Samples.on(device, x, rng.integers(0, classes, len(x)))
    setup = Setup(partial(build, network, shape, classes, 0), samples, replace(training, epochs=EPOCHS), device)
    if setup.layout != model.layout:
        raise ModelError("the model in the file is not one of the network that it names; their tensors differ.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        backend = choose(setup)
        lent = setup.flat()

        def ours() -> None:
            worker = Worker(lent, samples, np.arange(len(x)), setup.training, 1, 0)
            backend.fit([worker], [Fit(model)])

        sides = {OURS: ours, "pytorch": _loop(setup, False)}
        if len(shape) == 3:
            sides["pytorch, channels last"] = _loop(setup, True)
        return StepSpeed(_medians(sides, seconds, show), backend.name)
    finally:
        torch.set_num_threads(threads)


def _medians(sides: dict[str, Callable[[], None]], seconds: float, show: Callable[[float], None]) -> dict[str, float]:
    for turn in sides.values():
        turn()
    spent: dict[str, list[float]] = {name: [] for name in sides}
    start = time.perf_counter()
    while not spent[OURS] or time.perf_counter() < start + seconds:
        for name, turn in sides.items():
            began = time.perf_counter()
            turn()
            steps = STEPS * EPOCHS if name == OURS else STEPS
            spent[name].append(1e3 * (time.perf_counter() - began) / steps)
        show(time.perf_counter() - start)
    return {name: median(times) for name, times in spent.items()}


def _loop(setup: Setup, channels_last: bool) -> Callable[[], None]:
    """The loop that PyTorch's tutorials show, over the samples in batches."""
    module, size = setup.make().train(), setup.training.batch_size
    x, y = torch.as_tensor(setup.samples.x), setup.samples.y
    if channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(module.parameters(), lr=setup.training.lr, momentum=setup.training.momentum)

    def turn() -> None:
        for first in range(0, len(y), size):
            optimiser.zero_grad()
            setup.loss(module(x[first : first + size]), y[first : first + size]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return turn
