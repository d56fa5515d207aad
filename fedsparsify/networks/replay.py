"""A graph run by torch, and compared with the module that it was traced from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

from ..graph import Node
from ..ops import by_torch

Tensors = Mapping[str, torch.Tensor]
ROUNDING = 1e-4  # of the largest logit; both sides call the same functions of torch


def replay(graph: Sequence[Node], tensors: Tensors, x: torch.Tensor) -> torch.Tensor:
    """What a graph gives for a batch, one call of torch per node."""
    result: torch.Tensor = by_torch(functional, graph, tensors, x)
    return result


@torch.no_grad()
def difference(module: nn.Module, graph: Sequence[Node], tensors: Tensors, x: torch.Tensor) -> str | None:
    """How the logits of a graph differ from those of its module, which evaluates; None where they agree."""
    expected, again = module(x.clone()), module(x.clone())
    if not torch.equal(expected.nan_to_num(), again.nan_to_num()):
        return "the network gives other logits each time it is asked"
    received = replay(graph, tensors, x.clone())
    if received.shape != expected.shape:
        return f"its graph gives {tuple(received.shape)} where the network gives {tuple(expected.shape)}"
    if not bool(expected.isfinite().all()):
        return None  # a model that diverged; there is nothing to compare
    gap, most = float((received - expected).abs().max()), float(expected.abs().max())
    return None if gap <= ROUNDING * most else f"its graph gives logits that differ by {gap:.3g} of at most {most:.3g}"
