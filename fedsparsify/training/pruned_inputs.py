"""Weight gradients from a layer's largest inputs: the memory and the products that sparse training saves (SWAT).

A layer that keeps a share d of its weights computes its output from all inputs, and its weights' gradient from the
share d of them that is largest, over the whole batch. As in SparsyFed's code, a convolution finds its threshold in
the first batch of a fit and keeps it; a linear layer finds one in each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def inputs_pruned(wanted: bool) -> AbstractContextManager[object]:
    """While the block lasts, and if wanted, weight gradients are those of the largest inputs."""
    return PrunedInputs() if wanted else nullcontext()


class PrunedInputs(TorchFunctionMode):
    """Replaces convolutions and linear layers of this thread, as functions and as modules."""

    def __init__(self) -> None:
        super().__init__()
        self._shares: dict[int, float] = {}  # of a layer's weights that are not zero, by their address
        self._thresholds: dict[int, torch.Tensor] = {}  # of convolutions
        self._inside = False  # whether a layer is being computed, forwards or backwards

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        given: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function; one with pruned weights also hides the small inputs from their gradient."""
        named = named or {}
        if self._inside or not torch.is_grad_enabled() or (function is not linear and function not in CONVOLUTIONS):
            return function(*given, **named)
        settings = dict(zip(ARGUMENTS, given, strict=False)) | dict(named)
        x, weight, bias = settings.pop("input"), settings.pop("weight"), settings.pop("bias", None)
        place = weight.data_ptr()
        if place not in self._shares:
            self._shares[place] = int(torch.count_nonzero(weight)) / weight.numel()
        if self._shares[place] == 1:
            return function(*given, **named)

        def call(inputs: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            self._inside = True
            try:
                return function(inputs, weights, bias, **settings)  # type: ignore[no-any-return]
            finally:
                self._inside = False

        pruned = self._largest(x.detach(), place, function is not linear)
        return _Hidden.apply(call, pruned, x, weight, bias)  # type: ignore[no-untyped-call]

    def _largest(self, x: torch.Tensor, place: int, keeps_threshold: bool) -> torch.Tensor:
        """The inputs with zeros in place of all but the largest."""
        threshold = self._thresholds.get(place)
        if threshold is None:
            threshold = smallest_kept(x, self._shares[place])
        if keeps_threshold:
            self._thresholds[place] = threshold
        return torch.where(x.abs() >= threshold, x, 0)


def smallest_kept(x: torch.Tensor, share: float) -> torch.Tensor:
    """The least magnitude among a tensor's largest entries, this share of them, and at least one."""
    flat = x.abs().flatten()
    return flat.kthvalue(len(flat) - max(1, int(share * len(flat))) + 1).values


class _Hidden(torch.autograd.Function):
    """A layer's output from its inputs; the gradient of its weights from the pruned ones."""

    @staticmethod
    def forward(context: Any, call: Any, pruned: Any, x: Any, weight: Any, bias: Any) -> Any:
        context.call = call
        context.save_for_backward(pruned, weight, *(() if bias is None else (bias,)))
        return call(x, weight, bias)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        pruned, weight, *bias = (tensor.detach().requires_grad_() for tensor in context.saved_tensors)
        with torch.enable_grad():
            output = context.call(pruned, weight, *(bias or (None,)))
        # The gradient of the inputs depends on the weights alone.
        found = torch.autograd.grad(output, (pruned, weight, *bias), gradient)
        return None, None, found[0], found[1], found[2] if bias else None
