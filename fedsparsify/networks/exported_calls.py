"""Calls of ATen that compute: arithmetic with constants, means, norms, products, attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..ops.base import Untraceable
from .exported_handlers import handles
from .exported_layouts import combined, of_all, split, transpose
from .exported_values import Exported, Held

if TYPE_CHECKING:
    from .exporting import Reader


@handles("mul", "multiply")
def product(reader: Reader, out: Any, x: Any, y: Any) -> Exported:
    """x · y."""
    return combined(reader, "mul", x, y, tuple(out.shape))


@handles("add", "__add__")
def total(reader: Reader, out: Any, x: Any, y: Any, *, alpha: float = 1) -> Exported:
    """x + alpha · y."""
    return combined(reader, "add", x, _scaled(reader, y, alpha), tuple(out.shape))


@handles("sub", "subtract")
def difference(reader: Reader, out: Any, x: Any, y: Any, *, alpha: float = 1) -> Exported:
    """x - alpha · y."""
    return combined(reader, "add", x, _scaled(reader, y, -alpha), tuple(out.shape))


@handles("rsub")
def reversed_difference(reader: Reader, out: Any, x: Any, y: Any, alpha: float = 1) -> Exported:
    """y - alpha · x."""
    return combined(reader, "add", _scaled(reader, x, -alpha), y, tuple(out.shape))


def _scaled(reader: Reader, value: Any, factor: float) -> Any:
    if factor == 1:
        return value
    if isinstance(value, Exported | Held):
        source = reader.value(value)
        return combined(reader, "mul", source, factor, source.sides)
    return value * factor


@handles("neg")
def negative(reader: Reader, out: Any, x: Any) -> Exported:
    """-x."""
    return combined(reader, "mul", x, -1.0, tuple(out.shape))


@handles("div", "divide", "true_divide")
def quotient(reader: Reader, out: Any, x: Any, y: Any, **more: Any) -> Exported:
    """x / y, as a product with the reciprocal."""
    if more.get("rounding_mode") is not None:
        raise Untraceable("the network divides and rounds, which no graph has")
    if isinstance(y, Exported | Held):
        divisor = reader.value(y)
        return combined(reader, "mul", x, reader.emit("reciprocal", [divisor], sides=divisor.sides), tuple(out.shape))
    return combined(reader, "mul", x, 1 / torch.as_tensor(y, dtype=torch.float64), tuple(out.shape))


@handles("pow", "square", "rsqrt")
def power(reader: Reader, out: Any, x: Any, exponent: Any = None) -> Exported:
    """Squares and roots."""
    source, sides = reader.value(x), tuple(out.shape)
    name = reader.call_name
    if name == "square" or (name == "pow" and exponent == 2):
        return combined(reader, "mul", source, source, sides)
    if name == "pow" and exponent == 1:
        return source
    if name == "rsqrt" or (name == "pow" and exponent in (0.5, -0.5, -1)):
        made = source if exponent == -1 else reader.emit("sqrt", [source], sides=sides)
        return made if exponent == 0.5 else reader.emit("reciprocal", [made], sides=sides)
    raise Untraceable(f"the network takes a power of {exponent!r}, which no graph has")


@handles("mean")
def mean(reader: Reader, out: Any, x: Any, dims: Any = None, keepdim: bool = False, **more: Any) -> Exported:
    """The mean over dimensions."""
    source = reader.value(x)
    if dims is None or not len(dims if isinstance(dims, Sequence) else [dims]):
        raise Untraceable("the network takes the mean over the whole batch")
    listed = sorted(dim % len(source.sides) for dim in (dims if isinstance(dims, Sequence) else [dims]))
    axes = [source.place(dim) for dim in listed]
    sides = tuple(1 if dim in listed else side for dim, side in enumerate(source.sides))
    if axes == [2, 3] and len(source.sample) == 3 and source.plain:
        made = reader.emit("adaptive_avg_pool2d", [source], {"size": [1, 1]}, sides=sides)
    else:
        made = reader.emit("mean", [source], {"axes": axes}, sides=sides)
    return reader.reshaped(made, tuple(out.shape))


@handles("sum")
def summed(reader: Reader, out: Any, x: Any, dims: Any = None, keepdim: bool = False, **more: Any) -> Exported:
    """The sum over dimensions."""
    made = mean(reader, out, x, dims, keepdim)
    return combined(reader, "mul", made, prod(reader.value(x).sides) / max(prod(out.shape), 1), tuple(out.shape))


@handles("linalg_vector_norm")
def norm(reader: Reader, out: Any, x: Any, order: float = 2, dims: Any = None, keepdim: bool = False) -> Exported:
    """The root of the sum of squares."""
    if order != 2:
        raise Untraceable(f"the network takes a norm of order {order}, which no graph has")
    source = reader.value(x)
    squares = combined(reader, "mul", source, source, source.sides)
    return reader.emit("sqrt", [summed(reader, out, squares, dims, keepdim)], sides=tuple(out.shape))


@handles("softmax", "_softmax")
def softmax(reader: Reader, out: Any, x: Any, dim: int, *more: Any, **kwargs: Any) -> Exported:
    """Shares along a dimension."""
    source = reader.value(x)
    return reader.emit("softmax", [source], {"axis": source.place(dim)}, sides=tuple(out.shape))


@handles("layer_norm")
def layer_norm(
    reader: Reader, out: Any, x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5,
    *more: Any,
) -> Exported:  # fmt: skip
    """Layer norm, whose dimensions are the last ones."""
    source = reader.value(x)
    if source.batch is not None and source.batch.axis >= len(source.sides) - len(shape):
        raise Untraceable("the network works across the samples of a batch")
    held = {"weight": weight, "bias": bias}
    if not all(tensor is None or isinstance(tensor, Held) for tensor in held.values()):
        raise Untraceable("layer_norm computes its weight instead of keeping it")
    tensors = {role: tensor.name for role, tensor in held.items() if tensor is not None}
    return reader.emit("layer_norm", [source], {"axes": len(shape), "eps": float(eps)}, tensors)


@handles("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(reader: Reader, out: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Batch norm as it evaluates; of rows of which a sample has several, by products and sums along the last side."""
    source = reader.value(x)
    if source.plain or len(source.sides) != 2:
        made = reader.operation(reader.call_name, source, *args, **kwargs)
    else:
        traced = reader.traced(reader.call_name, *args, **kwargs)
        held = {role: reader.value(tensor) for role, tensor in traced.tensors.items()}
        mean, spread = held["running_mean"], combined(reader, "add", held["running_var"], traced.attributes["eps"])
        root = reader.emit("sqrt", [spread], sides=spread.sides)
        made = combined(reader, "add", source, combined(reader, "mul", mean, -1.0))
        made = combined(reader, "mul", made, reader.emit("reciprocal", [root], sides=root.sides))
        made = combined(reader, "mul", made, held["weight"]) if "weight" in held else made
        made = combined(reader, "add", made, held["bias"]) if "bias" in held else made
    return [made] if isinstance(out, tuple | list) else made


@handles("addcmul")
def total_of_product(reader: Reader, out: Any, x: Any, y: Any, z: Any, *, value: float = 1) -> Exported:
    """x + value · y · z."""
    first, second = reader.value(y), reader.value(z)
    scaled = combined(reader, "mul", first, second, np.broadcast_shapes(first.sides, second.sides))
    return total(reader, out, x, scaled, alpha=value)


@handles("glu")
def gated(reader: Reader, out: Any, x: Any, dim: int = -1) -> Exported:
    """One half times the sigmoid of the other."""
    first, second = split(reader, [out, out], x, 0, dim)
    return product(reader, out, first, reader.emit("sigmoid", [second], sides=second.sides))


@handles("selu")
def selu(reader: Reader, out: Any, x: Any) -> Exported:
    """An ELU with the slope and the scale of Klambauer et al. (2017)."""
    source = reader.value(x)
    bent = reader.emit("elu", [source], {"slope": 1.6732632423543772}, sides=source.sides)
    return combined(reader, "mul", bent, 1.0507009873554805)


@handles("log_sigmoid", "log_sigmoid_forward")
def log_sigmoid(reader: Reader, out: Any, x: Any) -> Any:
    """-log(1 + exp(-x))."""
    turned = combined(reader, "mul", x, -1.0)
    made = combined(reader, "mul", reader.emit("softplus", [turned], sides=turned.sides), -1.0)
    return [made, None] if isinstance(out, tuple | list) else made


@handles("linear")
def linear(reader: Reader, out: Any, x: Any, weight: Any, bias: Any = None) -> Exported:
    """A product along the last dimension."""
    source = reader.value(x)
    source.place(-1)
    if not isinstance(weight, Held):
        raise Untraceable("linear computes its weight instead of keeping it")
    tensors = {"weight": weight.name} | ({"bias": bias.name} if isinstance(bias, Held) else {})
    made = reader.emit("linear", [source], {}, tensors, sides=tuple(out.shape))
    return made if bias is None or isinstance(bias, Held) else combined(reader, "add", made, bias, made.sides)


@handles("matmul", "bmm")
def matmul(reader: Reader, out: Any, x: Any, y: Any) -> Exported:
    """A matrix product."""
    values = [reader.value(value) for value in (x, y)]
    rank = max(len(value.sides) for value in values)
    if min(len(value.sides) for value in values) < 2:
        raise Untraceable("the network multiplies a matrix by a vector, which no graph has")
    values = [value.at_rank(rank) for value in values]
    like = next((value for value in values if value.batch is not None), values[0])
    if any(value.batch not in (None, like.batch) for value in values):
        raise Untraceable("the network multiplies values whose batches lie in other places")
    if like.batch is not None and like.batch.axis >= rank - 2:
        raise Untraceable("the network multiplies matrices across the samples of a batch")
    return reader.emit("matmul", [of_all(reader, value, like) for value in values], like=like, sides=tuple(out.shape))


@handles("einsum")
def einsum(reader: Reader, out: Any, equation: str, values: Sequence[Any], **more: Any) -> Exported:
    """A matrix product whose dimensions are named."""
    terms, _, result = equation.replace(" ", "").partition("->")
    names = terms.split(",")
    if len(names) == 2 == len(values) and all(term.isalpha() and len({*term}) == len(term) for term in names):
        shared, (first, second) = [name for name in names[0] if name in names[1]], names
        lone = [[name for name in term if name not in shared] for term in names]
        inner = [name for name in shared if name not in result]
        if len(inner) == len(lone[0]) == len(lone[1]) == 1 and {*result} == {*first, *second} - {*inner}:
            alike = [name for name in shared if name in result]
            orders = [*alike, lone[0][0], inner[0]], [*alike, inner[0], lone[1][0]]
            turned = [
                reader.permuted(reader.value(value), [term.index(name) for name in order])
                for value, term, order in zip(values, names, orders, strict=True)
            ]
            sides = (*turned[0].sides[:-1], turned[1].sides[-1])
            made = matmul(reader, torch.empty(sides, device="meta"), *turned)
            given = [*alike, lone[0][0], lone[1][0]]
            return reader.permuted(made, [given.index(name) for name in result])
    raise Untraceable(f"the network sums products by {equation!r}; a graph knows matrix products")


@handles("scaled_dot_product_attention")
def attention(
    reader: Reader, out: Any, query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0,
    causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Exported:  # fmt: skip
    """softmax(q · kᵀ · scale + mask) · v."""
    if dropout or enable_gqa:
        raise Untraceable("the network's attention has dropout or shared keys, which no graph has")
    q, k, v = (reader.value(x) for x in (query, key, value))
    factor = q.sides[-1] ** -0.5 if scale is None else scale
    q = combined(reader, "mul", q, float(factor), q.sides)
    turned = transpose(reader, None, k, -1, -2)
    scores = matmul(reader, torch.empty((*q.sides[:-1], k.sides[-2]), device="meta"), q, turned)
    if causal:
        hidden = torch.full((q.sides[-2], k.sides[-2]), float("-inf")).triu(1)
        scores = combined(reader, "add", scores, hidden, scores.sides)
    if mask is not None:
        if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
        scores = combined(reader, "add", scores, mask, scores.sides)
    shares = softmax(reader, torch.empty(scores.sides, device="meta"), scores, -1)
    return matmul(reader, out, shares, v)


@handles("index", "index_select", "embedding")
def indexed(reader: Reader, out: Any, x: Any, *args: Any, **kwargs: Any) -> Exported:
    """Entries by their numbers along one dimension."""
    source, name = reader.value(x), reader.call_name
    if name == "index_select":
        dim, numbers = args[0] % len(source.sides), args[1]
    elif name == "embedding":
        dim, numbers = 0, args[0]
    else:
        given = [(dim, index) for dim, index in enumerate(args[0]) if index is not None]
        if len(given) != 1:
            raise Untraceable("the network looks values up along several dimensions at once")
        dim, numbers = given[0]
    if not isinstance(numbers, torch.Tensor) or numbers.dtype == torch.bool:
        raise Untraceable("the network looks values up by numbers that depend on its input")
    side = source.sides[dim]
    listed = [int(number) % side for number in numbers.flatten()]
    sides = (*source.sides[:dim], len(listed), *source.sides[dim + 1 :])
    made = reader.emit("take", [source], {"axis": source.place(dim), "numbers": listed}, sides=sides)
    return reader.reshaped(made, tuple(out.shape))


@handles("masked_fill")
def masked(reader: Reader, out: Any, x: Any, mask: Any, value: Any) -> Exported:
    """Entries replaced where a constant mask says so."""
    if not isinstance(mask, torch.Tensor) or isinstance(value, Exported | Held):
        raise Untraceable("the network masks values by what depends on its input")
    kept = combined(reader, "mul", x, (~mask).float(), tuple(out.shape))
    return combined(reader, "add", kept, torch.zeros(mask.shape).masked_fill(mask, float(value)), tuple(out.shape))


@handles("new_zeros", "zeros_like", "zero", "new_ones", "ones_like", "new_full", "full_like", "fill")
def filled(reader: Reader, out: Any, x: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A constant of a shape."""
    name = reader.call_name
    if "zero" in name or "one" in name:
        return torch.full(tuple(out.shape), float("one" in name), dtype=out.dtype)
    value = args[-1]
    if isinstance(value, Exported | Held):
        raise Untraceable("the network fills a value with what depends on its input")
    return torch.full(tuple(out.shape), float(value), dtype=out.dtype)


@handles("slice_scatter")
def scattered(
    reader: Reader, out: Any, x: Any, given: Any, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Exported:  # fmt: skip
    """Entries along a dimension replaced by constants."""
    if isinstance(given, Exported | Held):
        raise Untraceable("the network writes one value into another")
    place = [slice(None)] * len(out.shape)
    place[dim] = slice(start, end, step)
    kept, written = torch.ones(tuple(out.shape)), torch.zeros(tuple(out.shape))
    kept[tuple(place)], written[tuple(place)] = 0, given
    return combined(reader, "add", combined(reader, "mul", x, kept, tuple(out.shape)), written, tuple(out.shape))
