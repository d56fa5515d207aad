"""A torch module whose parameters, statistics and gradients are views into flat vectors.

Loading a model is one copy and an SGD step is a handful of vector operations, however many tensors there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ..keyed import KeyedDropout
from ..model import Floats, SparseModel
from ..networks import layout_of, model_of, state_of

INTERNAL = frozenset(vars(nn.Module()))  # attributes that every module has: its tensors, children, hooks and mode


class FlatModule:
    """`module` on `device`, reading its values from `weights` and adding its gradients to `gradient`."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
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
        self._trained = [
            (parameter, views[spec.name], self.gradient[self.layout.slices[spec.name]].view(spec.shape))
            for spec, parameter in zip(self.layout.tensors, self.parameters, strict=True)
        ]
        for parameter, values, gradient in self._trained:
            parameter.data, parameter.grad = values, gradient
        for name in statistics.keys() & parameters.keys():
            parameters[name].data = views[name]
        self._statistics = [_Slot.of(module, name, views[name]) for name in statistics if name not in parameters]
        for slot in self._statistics:
            slot.bind()
        for child in module.modules():
            if isinstance(child, KeyedDropout):
                child.key = self.key
        self._rest = Rest(module, {*statistics}, self.key)

    def load(self, model: SparseModel) -> None:
        """Take a model's values over; whatever else the module holds is as it was when the network was built."""
        for slot in self._statistics:
            slot.bind()
        for parameter, values, gradient in self._trained:
            parameter.data, parameter.grad = values, gradient
        self._rest.restore()
        self.weights.copy_(torch.as_tensor(model.weights))

    def settle(self) -> None:
        """Bring tensors that `forward` assigned, instead of writing into them, back into the flat vectors."""
        for slot in self._statistics:
            slot.settle()
        for parameter, values, gradient in self._trained:
            if parameter.data_ptr() != values.data_ptr():
                values.copy_(parameter.data)
                parameter.data = values
            if parameter.grad is not gradient:
                gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
                parameter.grad = gradient

    def values(self) -> Floats:
        """A copy of the present values."""
        self.settle()
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


@dataclass(frozen=True)
class _Slot:
    """A buffer of a module, and the tensor that belongs there."""

    owner: nn.Module
    leaf: str
    tensor: torch.Tensor

    @classmethod
    def of(cls, module: nn.Module, name: str, tensor: torch.Tensor) -> _Slot:
        path, _, leaf = name.rpartition(".")
        return cls(module.get_submodule(path), leaf, tensor)

    def bind(self) -> None:
        self.owner._buffers[self.leaf] = self.tensor

    def settle(self) -> None:
        if (assigned := self.owner._buffers[self.leaf]) is not self.tensor:
            if assigned is not None:
                self.tensor.copy_(assigned.detach())
            self.bind()


class Rest:
    """What a module holds beside the tensors that travel: other buffers, and plain attributes.

    It belongs to no model, so that every client in every round starts from what the network was built with.
    """

    def __init__(self, module: nn.Module, travelling: set[str], key: torch.Tensor) -> None:
        named = [(name, b) for name, b in module.named_buffers() if name not in travelling and b is not key]
        self._buffers = {name: (_Slot.of(module, name, buffer), buffer.clone()) for name, buffer in named}
        self._attributes = [
            (name, child, {key: (value, _copied(value)) for key, value in _own(child)})
            for name, child in module.named_modules()
        ]

    def restore(self) -> None:
        """Put everything back."""
        for slot, start in self._buffers.values():
            slot.bind()
            slot.tensor.copy_(start)
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
