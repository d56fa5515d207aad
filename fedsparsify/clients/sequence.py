"""Networks that are layers in sequence, for those who compute them layer by layer."""

from __future__ import annotations

from torch import nn


def in_sequence(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers of a Sequential by name, one as often as it is used.

    None at all where the module is something else, or where a layer with parameters is frozen or used twice.
    """
    if type(module) is not nn.Sequential:
        return []
    layers = list(zip(module._modules, module, strict=True))
    learning = [layer for layer in module if next(layer.parameters(), None) is not None]
    once = len({id(layer) for layer in learning}) == len(learning)
    return layers if once and all(parameter.requires_grad for parameter in module.parameters()) else []
