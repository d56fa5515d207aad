"""The paper's three networks, ResNet-18, networks of users, and the flat layout of any of them.

In: a network's name, and the shape and classes of the samples. Out: a module, its layout, its values as a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..errors import ConfigError, ModelError
from ..keyed import KeyedDropout, seeded
from ..model import Layout, SparseModel, TensorSpec
from ..plugins import call_named, load_named
from .modules import changed_forward, changed_gradient
from .resnet import ResNet18

Shape = tuple[int, ...]  # of one sample
_MADE: WeakSet[nn.Module] = WeakSet()  # networks that factories have made, and that are still in use


def fc(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 128; 118,282 parameters on FashionMNIST."""
    return _glorot(
        nn.Flatten(),
        nn.Linear(prod(shape), 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Six convolutions and two dense layers; 1,609,930 parameters and 384 statistics on CIFAR-10."""
    channels, height, width = _image("cnn", shape, 8)

    def pair(inputs: int, outputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    return _glorot(
        *pair(channels, 64),
        _batch_norm(64),
        *pair(64, 128),
        _batch_norm(128),
        *pair(128, 128),
        nn.Flatten(),
        nn.Linear(128 * (height // 8) * (width // 8), 512),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(512, classes),
    )


def vgg16(shape: Shape, classes: int) -> nn.Module:
    """VGG-16 (Simonyan and Zisserman, 2015), batch norm; 14,774,436 parameters, 8,448 statistics on CIFAR-100."""
    inputs, height, width = _image("vgg16", shape, 32)
    layers: list[nn.Module] = []
    for outputs, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), _batch_norm(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return _glorot(*layers, nn.Flatten(), nn.Linear(512 * (height // 32) * (width // 32), classes))


def resnet18(shape: Shape, classes: int) -> nn.Module:
    """ResNet-18 for small images, batch norm; 11,173,962 parameters and 9,600 statistics on CIFAR-10."""
    return ResNet18(_image("resnet18", shape, 8)[0], classes, nn.BatchNorm2d)


def resnet18_gn(shape: Shape, classes: int) -> nn.Module:
    """The same with group norm, 32 groups: no statistics."""
    return ResNet18(_image("resnet18-gn", shape, 8)[0], classes, lambda channels: nn.GroupNorm(32, channels))


NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "fc": fc,
    "cnn": cnn,
    "vgg16": vgg16,
    "resnet18": resnet18,
    "resnet18-gn": resnet18_gn,
}


def _glorot(*layers: nn.Module) -> nn.Sequential:
    """Layers in sequence, with Glorot-uniform kernels and zero biases."""
    module = nn.Sequential(*layers)
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return module


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)  # Keras's defaults in PyTorch's terms


def _image(name: str, shape: Shape, least: int) -> Shape:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ConfigError(
            f"network {name!r} takes images of (channels, height, width), at least {least} pixels a side. "
            f"Received: samples of shape {shape}. Network 'fc' takes any shape."
        )
    return shape


def build(name: str, shape: Any, classes: int, seed: int) -> nn.Module:
    """A network of ours or of your factory, with the initialisation that it has there.

    A factory takes `(shape, classes)` or nothing. `classes` is the number of outputs, whatever the targets are;
    `shape` of several inputs is a dictionary or a tuple of shapes. Dropout layers are replaced by ones that draw from
    a key, so that a client's randomness depends on the seed, the round and the client alone.
    """
    factory = load_named(name, NETWORKS, "network")
    with seeded(seed):
        module = call_named(factory, name, "network", *((shape, classes) if _takes_two(factory) else ()))
        if not isinstance(module, nn.Module):
            raise ConfigError(f"network {name!r} must make a torch.nn.Module. Received: {type(module).__name__}.")
        if module in _MADE:
            raise ConfigError(f"network {name!r} must make a new network at every call. Received: the same one again.")
        if any(is_lazy(parameter) for parameter in module.parameters()):
            with torch.no_grad():
                _give_sizes(module.eval(), shape)
            module.train()
    module = _with_keyed_dropout(module)
    _MADE.add(module)
    return module


def _give_sizes(module: nn.Module, shape: Any) -> None:
    """Call a network with lazy layers once: with floats, or with integers if it does not take them."""
    for kind in (torch.float32, torch.int64):
        try:
            if isinstance(shape, dict):
                module(**{name: torch.zeros(1, *sides, dtype=kind) for name, sides in shape.items()})
            elif shape and isinstance(shape[0], tuple):
                module(*(torch.zeros(1, *sides, dtype=kind) for sides in shape))
            else:
                module(torch.zeros(1, *shape, dtype=kind))
            return
        except (RuntimeError, TypeError):
            if kind == torch.int64:
                raise


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a part of the module is a batch norm: one of PyTorch's, or a layer that keeps a running mean."""
    return any(isinstance(part, _BatchNorm) or "running_mean" in part._buffers for part in module.modules())


def _takes_two(factory: Callable[..., object]) -> bool:
    try:
        inspect.signature(factory).bind((), 0)
    except (TypeError, ValueError):
        return False
    return True


def _with_keyed_dropout(module: nn.Module) -> nn.Module:
    salt = 0
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout and not changed_forward(child) and not changed_gradient(child):
                setattr(parent, name, KeyedDropout(child.p, salt, child.inplace))
                salt += 1
    return module


def state_of(module: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors that travel: trainable ones, and statistics (float buffers and frozen parameters)."""
    trainable = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    statistics = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    kept = module.state_dict().keys()
    statistics |= {name: b for name, b in module.named_buffers() if name in kept and b.is_floating_point()}
    if not trainable:
        raise ModelError("the network has no trainable parameter.")
    for name, tensor in {**trainable, **statistics}.items():
        if tensor.dtype != torch.float32:
            raise ModelError(f"the network must be float32. Received: {name!r} of {tensor.dtype}.")
    return trainable, statistics


def layout_of(module: nn.Module) -> Layout:
    """Where each tensor of the module lies in the flat vector."""
    trainable, statistics = state_of(module)
    return Layout(
        tuple(TensorSpec(name, tuple(t.shape)) for name, t in trainable.items()),
        tuple(TensorSpec(name, tuple(t.shape)) for name, t in statistics.items()),
    )


def model_of(module: nn.Module) -> SparseModel:
    """The module's present values as a dense model.

    Args:
        module: a network in float32.

    Returns:
        A model: parameters, then float buffers and frozen parameters as statistics.

    Raises:
        ModelError: if a tensor is not float32, or nothing is trainable.

    Example:
        >>> from torch import nn
        >>> from fedsparsify.networks import model_of
        >>> model_of(nn.Linear(4, 2))
        SparseModel(2 tensors, 10 of 10 values, sparsity 0.0000)
    """
    trainable, statistics = state_of(module)
    tensors = [*trainable.values(), *statistics.values()]
    return SparseModel.dense(layout_of(module), np.concatenate([t.cpu().numpy().ravel() for t in tensors]))
