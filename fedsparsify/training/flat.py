"""A torch module whose parameters, statistics and gradients are views into flat vectors.

In: a module and a model. Out: logits, and flat gradients by autograd. Loading a model is one copy and an SGD step is a
few vector operations, for any number of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from ..keyed import KeyedDropout
from ..model import Floats, Layout, SparseModel
from ..networks import layout_of, model_of, state_of
from .bindings import Binding, BufferBinding, ParameterBinding, owner_of
from .inputs import Batch, call
from .untracked_state import UntrackedState


class FlatModule:
    """`module` on `device`, reading its values from `weights` and adding its gradients to `gradient`.

    Its tensors are views of those vectors, or `copied`: on a GPU, since cuDNN needs them aligned. With `channels_last`,
    the entries of a convolution's weight are in another order in these vectors; see `channels_last_order`.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, copied: bool | None = None, channels_last: bool = False
    ) -> None:
        self.module = module.to(device)
        self.device = device
        self.draws = True  # whether it may draw from torch's own generator, which all threads share
        self._writes_input: bool | None = None  # None: not known yet
        self.layout = layout_of(module)
        self.weights = torch.from_numpy(model_of(module).weights).to(device)
        self.gradient = torch.zeros(self.layout.trainable, device=device)
        self.key = torch.zeros((), dtype=torch.int64, device=device)
        _, statistics = state_of(module)
        views = self.layout.views(self.weights)
        if channels_last:
            self.weights[: self.layout.trainable] = self.weights[channels_last_order(self.layout)]
            views = {name: _channels_last(view) for name, view in views.items()}
        parameters = dict(module.named_parameters())
        self.parameters = [parameters[spec.name] for spec in self.layout.tensors]
        self._copied = device.type == "cuda" if copied is None else copied
        gradients = {
            spec.name: self.gradient[self.layout.slices[spec.name]].view(spec.shape) for spec in self.layout.tensors
        }
        if channels_last:
            gradients = {name: _channels_last(view) for name, view in gradients.items()}
        held = {name: view.clone() for name, view in views.items()} if self._copied else views
        held_gradients = {name: view.clone() for name, view in gradients.items()} if self._copied else gradients
        self._bindings: list[Binding] = [
            ParameterBinding(parameters[name], views[name], held[name], gradients.get(name), held_gradients.get(name))
            if name in parameters
            else BufferBinding(*owner_of(module, name), views[name], held[name])
            for name in views
        ]
        for binding in self._bindings:
            binding.bind()
        for child in module.modules():
            if isinstance(child, KeyedDropout):
                child.key = self.key
        self._untracked = UntrackedState(module, {*statistics}, self.key)

    def load(self, model: SparseModel) -> None:
        """Take a model's values over. The rest of the module's state is reset to how the network was built."""
        for binding in self._bindings:
            binding.bind()
        self._untracked.restore()
        self.weights.copy_(torch.as_tensor(model.weights))
        self.refresh()

    def refresh(self) -> None:
        """Before a pass: empty the gradient, and give the module the values of the flat vector."""
        self.gradient.zero_()
        if self._copied:
            for binding in self._bindings:
                binding.refresh()

    def settle(self) -> None:
        """After a pass: bring what the module holds, and tensors that `forward` assigned, into the flat vectors."""
        for binding in self._bindings:
            binding.settle()

    def values(self) -> Floats:
        """A copy of the flat vector."""
        return np.array(self.weights.cpu().numpy(), copy=True)

    def changed(self) -> Iterator[str]:
        """Names of what `forward` changed since `load` beside the tensors that travel."""
        return self._untracked.changed()

    def logits(self, x: Batch) -> torch.Tensor:
        """The outputs for samples that are read again later: a module that writes into its input is given a copy."""
        if self._writes_input is None:
            copied = x.clone()
            logits: torch.Tensor = call(self.module, copied)
            self._writes_input = copied._version > 0
            return logits
        return call(self.module, x.clone() if self._writes_input else x)  # type: ignore[no-any-return]


def channels_last_order(layout: Layout) -> torch.Tensor:
    """Where each entry of a vector with `channels_last` lies in a vector without."""
    parts = [torch.arange(place.start, place.stop) for place in (layout.slices[spec.name] for spec in layout.tensors)]
    return torch.cat(
        [
            part.view(spec.shape).permute(0, 2, 3, 1).reshape(-1) if len(spec.shape) == 4 else part
            for part, spec in zip(parts, layout.tensors, strict=True)
        ]
    )


def _channels_last(view: torch.Tensor) -> torch.Tensor:
    """A view of the same memory whose second axis is the last in memory, if it has four."""
    if view.ndim != 4:
        return view
    outputs, inputs, rows, columns = view.shape
    return view.view(outputs, rows, columns, inputs).permute(0, 3, 1, 2)


def flat_gradient(loss: torch.Tensor, parameters: list[nn.Parameter], again: bool = False) -> torch.Tensor:
    """Flat gradient of a loss; `again`: it can be differentiated, too. Zero for what the loss does not depend on."""
    parts = torch.autograd.grad(loss, parameters, create_graph=again, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])


def hessian_gradient(loss: torch.Tensor, parameters: list[nn.Parameter]) -> torch.Tensor:
    """H g: the gradient of gᵀ·g with one of the two g held constant."""
    first = flat_gradient(loss, parameters, again=True)
    return flat_gradient(first @ first.detach(), parameters)
