"""Whether a torch module computes what its class says.

Code that computes a layer by its class (our kernels, a traced graph) must ask here first: a hook, a parametrization or
a `forward` of the instance's own changes the result, and the layer's attributes do not show it.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

FORWARD = {"_forward_pre_hooks": "forward pre-hook", "_forward_hooks": "forward hook"}
BACKWARD = {"_backward_pre_hooks": "backward pre-hook", "_backward_hooks": "backward hook"}
OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def changed_forward(module: nn.Module) -> str | None:
    """Why the module, or one inside it, may give another result than its class; None where it cannot."""
    if what := _hooks_of_all(FORWARD):
        return what
    for name, child in module.named_modules():
        where = f"{name!r} ({type(child).__name__})" if name else f"the network ({type(child).__name__})"
        if hook := _hook(child, FORWARD):
            return f"{where} has a {hook}"
        if "forward" in vars(child):
            return f"{where} has a forward of its own, set on the instance"
        if parametrize.is_parametrized(child):
            return f"{where} has a parametrization of {', '.join(child.parametrizations)}"
    return None


def changed_gradient(module: nn.Module) -> str | None:
    """Why the gradient of the module may be another than that of its forward pass; None where it cannot."""
    if what := _hooks_of_all(BACKWARD):
        return what
    for name, child in module.named_modules():
        if hook := _hook(child, BACKWARD):
            return f"{name!r} ({type(child).__name__}) has a {hook}"
    for name, parameter in module.named_parameters():
        if any(getattr(parameter, kind, None) for kind in OF_PARAMETERS):
            return f"the parameter {name!r} has a hook"
    return None


def _hook(module: nn.Module, kinds: dict[str, str]) -> str | None:
    for attribute, kind in kinds.items():
        for hook in (getattr(module, attribute, None) or {}).values():
            return f"{kind} ({getattr(hook, '__name__', type(hook).__name__)})"
    return None


def _hooks_of_all(kinds: dict[str, str]) -> str | None:
    """Hooks that torch calls for every module there is."""
    for attribute, kind in kinds.items():
        if getattr(torch_module, f"_global{attribute}", None):
            return f"torch has a {kind} for all modules"
    return None
