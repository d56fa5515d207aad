"""Masks the gradients of a user's PyTorch module, which is found by the names and shapes of its parameters.

In: a `Fit`. Out: hooks that add the proximal and the linear term to each gradient and zero its pruned entries. The
rule is held to `tests/training/sgd_reference.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Self

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from ...errors import ConfigError
from ...methods import Fit

NEEDS_HOOKS = (
    "this method adds a term to every gradient (Fit.linear), but the training loop used no PyTorch module whose "
    "parameters have the names and shapes of the model's tensors. Train such a module, or choose another method."
)
WRAPPED = ("_orig_mod.", "module.")  # prefixes that torch.compile and DataParallel add to names


class GradientMask:
    """Finds the module at its first forward pass, and hooks its parameters until the block ends."""

    def __init__(self, request: Fit) -> None:
        self._request = request
        self._handles: list[RemovableHandle] = []
        self._found = False

    def __enter__(self) -> Self:
        self._handles.append(register_module_forward_pre_hook(self._find))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        if kind is None and not self._found and self._request.linear is not None:
            raise ConfigError(NEEDS_HOOKS)

    def _find(self, module: torch.nn.Module, _: object) -> None:
        layout = self._request.model.layout
        parameters = {_bare(name): parameter for name, parameter in module.named_parameters()}
        mine = [parameters.get(_bare(spec.name)) for spec in layout.tensors]
        if any(p is None or p.shape != spec.shape for p, spec in zip(mine, layout.tensors, strict=True)):
            return
        self._handles.pop(0).remove()  # found: other layers need not be looked at
        self._found = True
        pruned_entries = torch.from_numpy(~self._request.model.mask)
        linear = None if self._request.linear is None else torch.tensor(self._request.linear)
        for parameter, spec in zip(mine, layout.tensors, strict=True):
            if parameter is not None and parameter.requires_grad:
                place, prox = layout.slices[spec.name], self._request.prox
                term = None if linear is None else linear[place].view(spec.shape).to(parameter)
                pruned = pruned_entries[place].view(spec.shape).to(parameter.device)
                anchor = parameter.detach().clone() if prox else None
                hook = partial(_masked, parameter=parameter, pruned=pruned, anchor=anchor, prox=prox, linear=term)
                self._handles.append(parameter.register_hook(hook))  # type: ignore[no-untyped-call]


def _masked(
    gradient: torch.Tensor,
    parameter: torch.Tensor,
    pruned: torch.Tensor,
    anchor: torch.Tensor | None,
    prox: float,
    linear: torch.Tensor | None,
) -> torch.Tensor:
    if anchor is not None:
        gradient = gradient + prox * (parameter.detach() - anchor)
    if linear is not None:
        gradient = gradient + linear
    return gradient.masked_fill(pruned, 0)


def _bare(name: str) -> str:
    for prefix in WRAPPED:
        name = name.removeprefix(prefix)
    return name
