"""A graph run by torch, and held against the module that it was traced from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from .graph import INPUT, Node

Tensors = Mapping[str, torch.Tensor]
ROUNDING = 1e-4  # of the largest logit; both sides call the same functions of torch


def replay(graph: Sequence[Node], tensors: Tensors, x: torch.Tensor) -> torch.Tensor:
    """What a graph gives for a batch, one call of torch per node."""
    values = {INPUT: x}
    for node in graph:
        ins = [values[name] for name in node.inputs]
        values[node.output] = _result(node, ins, {role: tensors[name] for role, name in node.tensors.items()})
    return values[graph[-1].output]


def _result(node: Node, ins: Sequence[torch.Tensor], t: Tensors) -> torch.Tensor:
    a = node.attributes
    match node.op:
        case "linear":
            return F.linear(ins[0], t["weight"], t.get("bias"))
        case "conv2d":
            return F.conv2d(ins[0], t["weight"], t.get("bias"), a["stride"], a["padding"], a["dilation"], a["groups"])
        case "batch_norm":
            statistics = t["running_mean"], t["running_var"]
            return F.batch_norm(ins[0], *statistics, t.get("weight"), t.get("bias"), eps=a["eps"])
        case "leaky_relu":
            return F.leaky_relu(ins[0], a["slope"])
        case "max_pool2d":
            return F.max_pool2d(ins[0], a["kernel"], a["stride"], a["padding"], ceil_mode=a["ceil"])
        case "avg_pool2d":
            return F.avg_pool2d(ins[0], a["kernel"], a["stride"], a["padding"], a["ceil"], a["count_padding"])
        case "adaptive_avg_pool2d":
            return F.adaptive_avg_pool2d(ins[0], a["size"])
        case "flatten":
            return torch.flatten(ins[0], a["start"])
        case "add":
            return ins[0] + ins[1]
        case "softmax":
            return torch.softmax(ins[0], a["axis"])
        case op:
            result: torch.Tensor = getattr(F, op)(ins[0])
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
