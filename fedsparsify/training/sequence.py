"""Networks that are layers in sequence, for back ends that compute them layer by layer.

In: a module. Out: its layers by name, or none where the layers do not say everything that the module computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..networks.modules import changed_forward, changed_gradient

# Layers whose weight must have the shape that their attributes name: a user may have replaced it.
SHAPES: dict[type[nn.Module], Callable[[Any], tuple[int, ...]]] = {
    nn.Linear: lambda layer: (layer.out_features, layer.in_features),
    nn.Conv2d: lambda layer: (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size),
}


def in_sequence(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of a Sequential by name, one as often as it is used.

    None at all where the module is something else, or where its layers do not say all of it: a frozen, shared or
    replaced tensor, a layer with parameters used twice, a hook.
    """
    if type(module) is not nn.Sequential or changed_forward(module) or changed_gradient(module):
        return []
    layers = list(zip(module._modules, module, strict=True))
    held = [f"{name}.{leaf}" for name, layer in layers for leaf, p in layer._parameters.items() if p is not None]
    tensors = dict(module.named_parameters())  # without repetition, whether of layers or of tensors
    whole = sorted(held) == sorted(tensors) and all(p.requires_grad for p in tensors.values())
    return layers if whole and all(_as_declared(layer) for layer in module) else []


def _as_declared(layer: nn.Module) -> bool:
    declared = SHAPES.get(type(layer))
    weight = layer._parameters.get("weight")
    return declared is None or (weight is not None and tuple(weight.shape) == declared(layer))
