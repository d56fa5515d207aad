"""The tensors of a module, bound to flat vectors: `FlatModule` has one binding per tensor.

In: a module's tensor and its part of the flat vectors. Out: the module computes with the vectors' values, and what a
pass changes or assigns gets back into them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn


class Binding(Protocol):
    """A tensor of a module, and its part of the flat vectors."""

    def bind(self) -> None:
        """Put this binding's tensor into the module."""

    def refresh(self) -> None:
        """Copy from the flat vectors, where the module has a copy."""

    def settle(self) -> None:
        """Copy what the module holds now to the flat vectors, and bind."""


@dataclass(frozen=True)
class ParameterBinding:
    """A parameter and its gradient."""

    parameter: nn.Parameter
    values: torch.Tensor  # in the flat vector
    held: torch.Tensor  # the same, or a copy
    gradient: torch.Tensor | None  # None: frozen
    held_gradient: torch.Tensor | None

    def bind(self) -> None:
        """Put this binding's tensor into the module."""
        self.parameter.data, self.parameter.grad = self.held, self.held_gradient

    def refresh(self) -> None:
        """Copy from the flat vectors."""
        self.held.copy_(self.values)
        if self.held_gradient is not None:
            self.held_gradient.zero_()

    def settle(self) -> None:
        """Copy to the flat vectors, and bind."""
        if self.parameter.data_ptr() != self.values.data_ptr():  # a copy, or assigned by `forward`
            self.values.copy_(self.parameter.data)
        if self.gradient is not None and self.parameter.grad is not self.gradient:
            grad = self.parameter.grad
            self.gradient.zero_() if grad is None else self.gradient.copy_(grad)
        if self.parameter.data_ptr() != self.held.data_ptr() or self.parameter.grad is not self.held_gradient:
            self.bind()


@dataclass(frozen=True)
class BufferBinding:
    """A buffer."""

    owner: nn.Module
    leaf: str
    values: torch.Tensor  # in the flat vector
    held: torch.Tensor  # the same, or a copy

    def bind(self) -> None:
        """Put this binding's tensor into the module."""
        self.owner._buffers[self.leaf] = self.held

    def refresh(self) -> None:
        """Copy from the flat vectors."""
        self.held.copy_(self.values)

    def settle(self) -> None:
        """Copy to the flat vectors, and bind."""
        now = self.owner._buffers[self.leaf]
        if now is not None and now is not self.values:  # a copy, or assigned by `forward`
            self.values.copy_(now.detach())
        self.bind()


def owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that has a tensor, and the tensor's name there."""
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
