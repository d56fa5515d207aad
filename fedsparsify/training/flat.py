"""A torch module whose parameters, statistics and gradients are views into flat vectors.

Loading a model is one copy and an SGD step is a handful of vector operations, however many tensors there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from ..keyed import KeyedDropout
from ..model import Floats, SparseModel
from ..networks import layout_of, model_of, state_of

INTERNAL = frozenset(vars(nn.Module()))  # attributes that every module has: its tensors, children, hooks and mode


class FlatModule:
    """`module` on `device`, reading its values from `weights` and adding its gradients to `gradient`.

    Its tensors are views of those vectors, or copies where they lie `apart`: on a GPU, since cuDNN wants them aligned.
    """

    def __init__(self, module: nn.Module, device: torch.device, apart: bool | None = None) -> None:
        self.module = module.to(device)
        self.device = device
        self.draws = True  # whether it may draw from torch's own generator, which is one for all threads
        self._writes_input: bool | None = None  # None: not known yet
        self.layout = layout_of(module)
        self.weights = torch.from_numpy(model_of(module).weights).to(device)
        self.gradient = torch.zeros(self.layout.trainable, device=device)
        self.key = torch.zeros((), dtype=torch.int64, device=device)
        _, statistics = state_of(module)
        views = self.layout.views(self.weights)
        parameters = dict(module.named_parameters())
        self.parameters = [parameters[spec.name] for spec in self.layout.tensors]
        self._apart = device.type == "cuda" if apart is None else apart
        gradients = {
            spec.name: self.gradient[self.layout.slices[spec.name]].view(spec.shape) for spec in self.layout.tensors
        }
        held = {name: view.clone() for name, view in views.items()} if self._apart else views
        slopes = {name: view.clone() for name, view in gradients.items()} if self._apart else gradients
        self._slots: list[_Slot] = [
            _Parameter(parameters[name], views[name], held[name], gradients.get(name), slopes.get(name))
            if name in parameters
            else _Buffer(*_owner(module, name), views[name], held[name])
            for name in views
        ]
        for slot in self._slots:
            slot.bind()
        for child in module.modules():
            if isinstance(child, KeyedDropout):
                child.key = self.key
        self._rest = Rest(module, {*statistics}, self.key)

    def load(self, model: SparseModel) -> None:
        """Take a model's values over; whatever else the module holds is as it was when the network was built."""
        for slot in self._slots:
            slot.bind()
        self._rest.restore()
        self.weights.copy_(torch.as_tensor(model.weights))
        self.refresh()

    def refresh(self) -> None:
        """Before a pass: empty the gradient, and give the module the values of the flat vector."""
        self.gradient.zero_()
        if self._apart:
            for slot in self._slots:
                slot.refresh()

    def settle(self) -> None:
        """After a pass: bring what the module holds, and tensors that `forward` assigned, into the flat vectors."""
        for slot in self._slots:
            slot.settle()

    def values(self) -> Floats:
        """A copy of the flat vector."""
        return np.array(self.weights.cpu().numpy(), copy=True)

    def changed(self) -> Iterator[str]:
        """Names of what `forward` changed since `load` beside the tensors that travel."""
        return self._rest.changed()

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """What the module gives for samples that others will read again: it may write into a copy of them alone."""
        if self._writes_input is None:
            copied = x.clone()
            logits: torch.Tensor = self.module(copied)
            self._writes_input = copied._version > 0
            return logits
        return self.module(x.clone() if self._writes_input else x)  # type: ignore[no-any-return]


class _Slot(Protocol):
    """A tensor of the module, and its place in the flat vectors."""

    def bind(self) -> None:
        """Have the module hold the tensor that belongs there."""

    def refresh(self) -> None:
        """Copy from the flat vectors, where the module's tensor lies apart."""

    def settle(self) -> None:
        """Copy what the module holds now to the flat vectors, and bind."""


@dataclass(frozen=True)
class _Parameter:
    parameter: nn.Parameter
    values: torch.Tensor  # in the flat vector
    held: torch.Tensor  # the same, or a copy
    gradient: torch.Tensor | None  # None: frozen
    held_gradient: torch.Tensor | None

    def bind(self) -> None:
        self.parameter.data, self.parameter.grad = self.held, self.held_gradient

    def refresh(self) -> None:
        self.held.copy_(self.values)
        if self.held_gradient is not None:
            self.held_gradient.zero_()

    def settle(self) -> None:
        if self.parameter.data_ptr() != self.values.data_ptr():  # apart, or assigned
            self.values.copy_(self.parameter.data)
        if self.gradient is not None and self.parameter.grad is not self.gradient:
            grad = self.parameter.grad
            self.gradient.zero_() if grad is None else self.gradient.copy_(grad)
        if self.parameter.data_ptr() != self.held.data_ptr() or self.parameter.grad is not self.held_gradient:
            self.bind()


@dataclass(frozen=True)
class _Buffer:
    owner: nn.Module
    leaf: str
    values: torch.Tensor  # in the flat vector
    held: torch.Tensor  # the same, or a copy

    def bind(self) -> None:
        self.owner._buffers[self.leaf] = self.held

    def refresh(self) -> None:
        self.held.copy_(self.values)

    def settle(self) -> None:
        now = self.owner._buffers[self.leaf]
        if now is not None and now is not self.values:  # apart, or assigned
            self.values.copy_(now.detach())
        self.bind()


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


class Rest:
    """What a module holds beside the tensors that travel: other buffers, and plain attributes.

    It belongs to no model, so that every client in every round starts from what the network was built with.
    """

    def __init__(self, module: nn.Module, travelling: set[str], key: torch.Tensor) -> None:
        named = [(name, b) for name, b in module.named_buffers() if name not in travelling and b is not key]
        self._buffers = {name: (_Buffer(*_owner(module, name), b.clone(), b), b.clone()) for name, b in named}
        self._attributes = [
            (name, child, {key: (value, _copied(value)) for key, value in _own(child)})
            for name, child in module.named_modules()
        ]

    def restore(self) -> None:
        """Put everything back."""
        for slot, start in self._buffers.values():
            slot.bind()
            slot.held.copy_(start)
        for _, child, known in self._attributes:
            for key in [key for key, _ in _own(child) if key not in known]:
                del child.__dict__[key]
            for key, (value, start) in known.items():
                child.__dict__[key] = value
                _put_back(value, start)

    def changed(self) -> Iterator[str]:
        """Names of what is no longer as it was; batch norm's counters aside, which matter to nobody else."""
        for name, (slot, start) in self._buffers.items():
            now = slot.owner._buffers[slot.leaf]
            counter = slot.leaf == "num_batches_tracked" and getattr(slot.owner, "momentum", None) is not None
            if not counter and (now is None or not torch.equal(now, start)):
                yield name
        for path, child, known in self._attributes:
            hooks = child._forward_pre_hooks.values()
            made = {getattr(hook, "name", getattr(hook, "_tensor_name", "")) for hook in hooks}
            for key, value in _own(child):
                if key in made:  # weight norm and its kind make a tensor anew before every forward
                    continue
                if key not in known or value is not known[key][0] or _differs(value, known[key][1]):
                    yield f"{path}.{key}" if path else key


def _own(module: nn.Module) -> list[tuple[str, Any]]:
    """Attributes that are neither tensors, children nor hooks, by name."""
    return [(name, value) for name, value in vars(module).items() if name not in INTERNAL]


def _copied(value: Any) -> Any:
    """A copy of what can be changed in place; anything else is None."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if type(value) in (list, dict, set) else None


def _put_back(value: Any, start: Any) -> None:
    match value:
        case torch.Tensor():
            value.detach().copy_(start)
        case list() if start is not None:
            value[:] = start
        case dict() | set() if start is not None:
            value.clear()
            value.update(start)


def _differs(value: Any, start: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not torch.equal(value.detach(), start)
    if start is None:
        return False
    if isinstance(value, list):
        return len(value) != len(start) or any(a is not b for a, b in zip(value, start, strict=True))
    if isinstance(value, dict):
        return value.keys() != start.keys() or any(value[key] is not start[key] for key in start)
    return bool(value != start)


def flat_gradient(loss: torch.Tensor, parameters: list[nn.Parameter], again: bool = False) -> torch.Tensor:
    """Flat gradient of a loss, which can be differentiated `again`; zero for what the loss does not depend on."""
    parts = torch.autograd.grad(loss, parameters, create_graph=again, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])


def hessian_gradient(loss: torch.Tensor, parameters: list[nn.Parameter]) -> torch.Tensor:
    """H g: the gradient of gᵀ·g with one of the two g held constant."""
    first = flat_gradient(loss, parameters, again=True)
    return flat_gradient(first @ first.detach(), parameters)
