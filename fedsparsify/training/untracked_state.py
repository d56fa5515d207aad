"""The state of a module beside the tensors that travel: kept as it was built, for every client.

In: a module. Out: the names of what a forward pass changed; `restore` puts everything back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .bindings import BufferBinding, owner_of

INTERNAL = frozenset(vars(nn.Module()))  # attributes that every module has: its tensors, children, hooks and mode


class UntrackedState:
    """The state of a module that no model has: buffers that do not travel, and plain attributes.

    Every client in every round starts with the state that the network was built with.
    """

    def __init__(self, module: nn.Module, travelling: set[str], key: torch.Tensor) -> None:
        named = [(name, b) for name, b in module.named_buffers() if name not in travelling and b is not key]
        self._buffers = {name: (BufferBinding(*owner_of(module, name), b.clone(), b), b.clone()) for name, b in named}
        self._attributes = [
            (name, child, {key: (value, _copied(value)) for key, value in _own(child)})
            for name, child in module.named_modules()
        ]

    def restore(self) -> None:
        """Put everything back."""
        for binding, start in self._buffers.values():
            binding.bind()
            binding.held.copy_(start)
        for _, child, known in self._attributes:
            for key in [key for key, _ in _own(child) if key not in known]:
                del child.__dict__[key]
            for key, (value, start) in known.items():
                child.__dict__[key] = value
                _put_back(value, start)

    def changed(self) -> Iterator[str]:
        """Names of what has changed; without batch norm's counters, which nothing reads."""
        for name, (binding, start) in self._buffers.items():
            now = binding.owner._buffers[binding.leaf]
            counter = binding.leaf == "num_batches_tracked" and getattr(binding.owner, "momentum", None) is not None
            if not counter and (now is None or not torch.equal(now, start)):
                yield name
        for path, child, known in self._attributes:
            hooks = child._forward_pre_hooks.values()
            made = {getattr(hook, "name", getattr(hook, "_tensor_name", "")) for hook in hooks}
            for key, value in _own(child):
                if key in made:  # weight norm and the like compute a tensor before every forward
                    continue
                if key not in known or value is not known[key][0] or _differs(value, known[key][1]):
                    yield f"{path}.{key}" if path else key


def _own(module: nn.Module) -> list[tuple[str, object]]:
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
