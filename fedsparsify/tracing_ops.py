"""What torch's layers and functions are called in a graph, and what a graph cannot say of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from .errors import ModelError
from .keyed import KeyedDropout


@dataclass(frozen=True)
class Parts:
    """What an operation is in a graph."""

    op: str
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)  # by role
    attributes: Mapping[str, Any] = field(default_factory=dict)
    in_place: bool = False  # whether the result is written over the input


class View(Parts):
    """An operation whose result may share memory with its input."""


class Untraceable(ModelError):
    """The network does something that a graph cannot say."""


def of_module(module: nn.Module, node: fx.Node) -> Parts | None:
    """What a leaf module does; None where it does nothing when evaluated."""
    if isinstance(module, KeyedDropout | nn.Identity) or type(module) in DROPOUTS:
        return None
    if type(module) in SIMPLE:
        return Parts(SIMPLE[type(module)], in_place=bool(getattr(module, "inplace", False)))
    match module:
        case nn.Linear():
            return Parts("linear", _tensors(weight=module.weight, bias=module.bias))
        case nn.Conv2d():
            return _conv(module)
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            if module.running_mean is None:
                raise Untraceable(f"{node.target}: a batch norm without running statistics")
            roles = {"weight": module.weight, "bias": module.bias}
            statistics = {"running_mean": module.running_mean, "running_var": module.running_var}
            return Parts("batch_norm", _tensors(**roles, **statistics), {"eps": module.eps})
        case nn.GELU():
            return _gelu(module.approximate)
        case nn.LeakyReLU():
            return _leaky_relu(module.negative_slope, module.inplace)
        case nn.MaxPool2d():
            sizes = (module.kernel_size, module.stride, module.padding, module.dilation)
            return _max_pool(*sizes, module.ceil_mode, module.return_indices)
        case nn.AvgPool2d():
            window = (module.kernel_size, module.stride, module.padding)
            return _avg_pool(*window, module.ceil_mode, module.count_include_pad, module.divisor_override)
        case nn.AdaptiveAvgPool2d():
            return _adaptive(module.output_size)
        case nn.Flatten():
            return _flatten(module.start_dim, module.end_dim)
        case nn.Softmax():
            return _softmax(module.dim)
    raise Untraceable(f"{node.target}: no graph has a {type(module).__name__}")


def _tensors(**roles: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {role: tensor for role, tensor in roles.items() if tensor is not None}


def _pair(value: Any) -> list[int]:
    pair = list(value) if isinstance(value, tuple | list) else [value, value]
    if not all(isinstance(item, int) for item in pair) or len(pair) not in (1, 2):
        raise Untraceable(f"a size must be one or two integers. Received: {value!r}")
    return pair * 2 if len(pair) == 1 else pair


def _conv(module: nn.Conv2d) -> Parts:
    if module.padding_mode != "zeros":
        raise Untraceable(f"a convolution pads with {module.padding_mode!r}; a graph knows zeros")
    dilation = _pair(module.dilation)
    if module.padding == "same":
        spans = [d * (k - 1) for d, k in zip(dilation, module.kernel_size, strict=True)]
        if any(span % 2 for span in spans):
            raise Untraceable("a 'same' convolution of an even kernel pads unevenly")
        padding = [span // 2 for span in spans]
    else:
        padding = [0, 0] if module.padding == "valid" else _pair(module.padding)
    attributes = {"stride": _pair(module.stride), "padding": padding, "dilation": dilation, "groups": module.groups}
    return Parts("conv2d", _tensors(weight=module.weight, bias=module.bias), attributes)


def _gelu(approximate: str = "none") -> Parts:
    if approximate != "none":
        raise Untraceable(f"a graph knows the exact gelu. Received: approximate={approximate!r}")
    return Parts("gelu")


def _leaky_relu(slope: float = 0.01, inplace: bool = False) -> Parts:
    return Parts("leaky_relu", {}, {"slope": float(slope)}, inplace)


def _max_pool(
    kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil: bool = False, indices: bool = False
) -> Parts:
    if _pair(dilation) != [1, 1] or indices:
        raise Untraceable("a graph knows max pooling without dilation and indices")
    sizes = {"kernel": _pair(kernel), "stride": _pair(stride or kernel), "padding": _pair(padding)}
    return Parts("max_pool2d", {}, sizes | {"ceil": ceil})


def _avg_pool(
    kernel: Any, stride: Any = None, padding: Any = 0, ceil: bool = False, count: bool = True, divisor: Any = None
) -> Parts:
    if divisor is not None:
        raise Untraceable("a graph knows average pooling without a divisor of your own")
    sizes = {"kernel": _pair(kernel), "stride": _pair(stride or kernel), "padding": _pair(padding)}
    return Parts("avg_pool2d", {}, sizes | {"ceil": ceil, "count_padding": count})


def _adaptive(size: Any) -> Parts:
    return Parts("adaptive_avg_pool2d", {}, {"size": _pair(size)})


def _flatten(start: int = 0, end: int = -1) -> Parts:
    if end != -1 or start < 1:
        raise Untraceable(f"a graph flattens to the last dimension, without the batch. Received: {start} … {end}")
    return View("flatten", {}, {"start": start})


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> None:
    if training:
        raise Untraceable("a dropout that is on even when the network evaluates; pass training=self.training")


def _softmax(dim: int | None) -> Parts:
    if dim is None:
        raise Untraceable("a softmax must name its dimension")
    return Parts("softmax", {}, {"axis": dim})


SIMPLE: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
}
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)

POOLS = ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d")

# torch's function → its name as a tensor's method has it.
FUNCTIONS: dict[Any, str] = {
    getattr(space, name): name
    for space in (functional, torch)
    for plain in (*SIMPLE.values(), "gelu", "leaky_relu", "dropout", "softmax", "flatten", "add", "reshape", *POOLS)
    for name in (plain, f"{plain}_")
    if hasattr(space, name)
} | {operator.add: "add", operator.iadd: "add_"}


def _bound(make: Callable[..., Parts | None], names: Mapping[str, str]) -> Callable[[fx.Node], Parts | None]:
    """`make` with a call's own arguments, torch's keyword names turned into ours."""

    def read(node: fx.Node) -> Parts | None:
        try:
            return make(*node.args[1:], **{names.get(name, name): value for name, value in node.kwargs.items()})
        except TypeError as error:
            raise Untraceable(f"{node.name}: {error}") from error

    return read


def _simple(op: str) -> Callable[..., Parts]:
    return lambda inplace=False: Parts(op, in_place=bool(inplace))


def of_call(node: fx.Node) -> Parts | None:
    """What a function or a tensor's method does; a name that ends in an underscore works in place, as torch's do."""
    key = node.target if node.op == "call_method" else FUNCTIONS.get(node.target)
    name = key.removesuffix("_") if isinstance(key, str) else ""
    if name not in CALLS:
        raise Untraceable(f"the network calls {getattr(node.target, '__name__', node.target)}, which no graph has")
    parts = CALLS[name](node)
    return parts if parts is None or key == name else replace(parts, in_place=True)


def is_batch_size(node: Any) -> bool:
    """Whether a value is `x.size(0)` or `x.shape[0]`."""
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_method" and node.target == "size":
        return node.args[1:] == (0,)
    if node.target is not operator.getitem or node.args[1] != 0:
        return False
    source = node.args[0]
    return isinstance(source, fx.Node) and (source.target is getattr or source.target == "size")


def _view(node: fx.Node) -> Parts:
    """`x.view(x.size(0), -1)`, the older way to flatten."""
    shape = node.args[1:]
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = tuple(shape[0])
    if len(shape) == 2 and shape[1] == -1 and is_batch_size(shape[0]):
        return _flatten(1)
    raise Untraceable(f"{node.name}: a graph knows only the reshape to (batch, -1)")


def _add(node: fx.Node) -> Parts:
    if node.kwargs or len(node.args) != 2 or not all(isinstance(a, fx.Node) for a in node.args):
        raise Untraceable(f"{node.name}: a graph adds two values of the network")
    return Parts("add")


_POOL = {"kernel_size": "kernel", "ceil_mode": "ceil", "count_include_pad": "count", "divisor_override": "divisor"}
CALLS: dict[str, Callable[[fx.Node], Parts | None]] = {
    **{op: _bound(_simple(op), {}) for op in SIMPLE.values()},
    "gelu": _bound(_gelu, {}),
    "leaky_relu": _bound(_leaky_relu, {"negative_slope": "slope"}),
    "max_pool2d": _bound(_max_pool, _POOL | {"return_indices": "indices"}),
    "avg_pool2d": _bound(_avg_pool, _POOL),
    "adaptive_avg_pool2d": _bound(_adaptive, {"output_size": "size"}),
    "flatten": _bound(_flatten, {"start_dim": "start", "end_dim": "end"}),
    "softmax": _bound(lambda dim=None, _stacklevel=3, dtype=None: _softmax(dim), {}),
    "dropout": _bound(_dropout, {"train": "training"}),
    "view": _view,
    "reshape": _view,
    "add": _add,
}
