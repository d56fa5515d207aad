"""A torch module whose parameters, statistics and gradients are views into flat vectors.

Loading a model is one copy and an SGD step is a handful of vector operations, however many tensors there are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ..keyed import KeyedDropout
from ..model import Floats, SparseModel
from ..networks import layout_of, model_of, state_of


class FlatModule:
    """`module` on `device`, reading its values from `weights` and adding its gradients to `gradient`."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self.device = device
        self.draws = True  # whether it may draw from torch's own generator, which is one for all threads
        self.layout = layout_of(module)
        self.weights = torch.from_numpy(model_of(module).weights).to(device)
        self.gradient = torch.zeros(self.layout.trainable, device=device)
        self.key = torch.zeros((), dtype=torch.int64, device=device)
        _, statistics = state_of(module)
        views = self.layout.views(self.weights)
        parameters = dict(module.named_parameters())
        self.parameters = [parameters[spec.name] for spec in self.layout.tensors]
        for spec, parameter in zip(self.layout.tensors, self.parameters, strict=True):
            parameter.data = views[spec.name]
            parameter.grad = self.gradient[self.layout.slices[spec.name]].view(spec.shape)
        for name in statistics:
            if name in parameters:
                parameters[name].data = views[name]
            else:
                owner, _, leaf = name.rpartition(".")
                module.get_submodule(owner)._buffers[leaf] = views[name]
        for child in module.modules():
            if isinstance(child, KeyedDropout):
                child.key = self.key
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point() and b is not self.key]

    def load(self, model: SparseModel) -> None:
        """Take a model's values over."""
        self.weights.copy_(torch.as_tensor(model.weights))
        for buffer, start in self._counters:
            buffer.copy_(start)

    def values(self) -> Floats:
        """A copy of the present values."""
        return np.array(self.weights.cpu().numpy(), copy=True)


def flat_gradient(loss: torch.Tensor, parameters: list[nn.Parameter], again: bool = False) -> torch.Tensor:
    """Flat gradient of a loss, which can be differentiated `again`; zero for what the loss does not depend on."""
    parts = torch.autograd.grad(loss, parameters, create_graph=again, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])


def hessian_gradient(loss: torch.Tensor, parameters: list[nn.Parameter]) -> torch.Tensor:
    """H g: the gradient of gᵀ·g with one of the two g held constant."""
    first = flat_gradient(loss, parameters, again=True)
    return flat_gradient(first @ first.detach(), parameters)
