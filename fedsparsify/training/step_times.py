"""How long a training step takes on this machine, layer by layer.

In: a network and a batch. Out: the setting `times` of a method, as text.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from .flat import FlatModule

REPEATS = 10


def step_times(network: FlatModule, x: torch.Tensor) -> str:
    """`c,t,t,…` in seconds: what an entry of each layer adds to a step on the batch `x`, and the rest of the step, c.

    The time of a layer is how much longer its dense forward and backward pass takes on the whole batch than on two
    samples. Divided by its entries, this is the time of one kept entry if time is proportional to what is kept.
    """
    module = network.module.train()
    owners = [spec.name.rpartition(".")[0] for spec in network.layout.tensors if len(spec.shape) > 1]
    given = _inputs(module, owners, x)
    each, layers = [], 0.0
    for owner in owners:
        layer = module.get_submodule(owner)
        batch = given.get(owner, (x,))
        whole = _seconds(layer, batch)
        seconds = max(whole - _seconds(layer, tuple(tensor[:2] for tensor in batch)), whole / 100)
        each.append(seconds / sum(p.numel() for p in layer.parameters()))
        layers += seconds / owners.count(owner)
    constant = max(0.0, _seconds(module, (x,)) - layers)
    return ",".join(f"{value:.3g}" for value in [constant, *each])


def _inputs(module: nn.Module, names: list[str], x: torch.Tensor) -> dict[str, tuple[torch.Tensor, ...]]:
    """The inputs of each submodule when the module is called with `x`; none for a submodule that is never called."""
    seen: dict[str, tuple[torch.Tensor, ...]] = {}

    def record(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        return lambda _, given: seen.update({name: tuple(tensor.detach() for tensor in given)})

    hooks = [module.get_submodule(name).register_forward_pre_hook(record(name)) for name in names]
    with torch.no_grad():
        module(x)
    for hook in hooks:
        hook.remove()
    return seen


def _seconds(module: nn.Module, given: tuple[torch.Tensor, ...]) -> float:
    """The shortest of several forward and backward passes."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        torch.autograd.grad(module(*given).sum(), parameters, materialize_grads=True)
        if given[0].is_cuda:
            torch.cuda.synchronize(given[0].device)
        took.append(time.perf_counter() - began)
    return min(took)
