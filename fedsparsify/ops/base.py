"""What an operation is. Every file of this folder that defines `OPERATION` adds one.

An operation knows nothing of its users: it imports neither torch nor onnx nor the engine, and is handed what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from ..graph import Node

Floats: TypeAlias = NDArray[np.float32]
Side: TypeAlias = int | None  # None: not known
Shape: TypeAlias = tuple[Side, ...] | None  # of a sample, without the batch; None: not even its dimensions are known
Attributes: TypeAlias = Mapping[str, Any]
Tensors: TypeAlias = Mapping[str, Any]  # by role; numpy's or torch's, as the caller has them
Check: TypeAlias = Callable[[Any], bool]
MAX_FLOAT = 3.4028234663852886e38  # the largest float32


class Untraceable(ModelError):
    """The network does something that a graph cannot hold."""


class Marker:
    """What stands in a traced call for an argument that is known only when the network runs."""


VALUE = Marker()  # another value of the network
BATCH = Marker()  # the number of samples in the batch


@dataclass(frozen=True)
class Traced:
    """A module or a call of PyTorch, as an operation reads it."""

    attributes: Attributes = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)  # role → the module's tensor
    in_place: bool = False  # whether the result is written over the input


class Onnx(Protocol):
    """Where an operation writes its ONNX form."""

    shapes: Mapping[str, tuple[int, ...]]  # of every value, without the batch
    constants: Collection[str]  # values that are the same for all samples, as a batch of one

    def emit(self, op: str, node: Node, *more: str, **attributes: Any) -> None:
        """A node that reads the inputs of ours, and `more`, and gives its output."""

    def between(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """A node on the way, whose output is called `name`."""

    def tensor(self, name: str) -> Floats:
        """A tensor of the model."""

    def held(self, name: str) -> str:
        """A tensor of the model as an input of a node."""

    def constant(self, name: str, value: Any) -> str:
        """Any other constant as an input of a node."""


class OnnxNode(Protocol):
    """A node of an ONNX model, as an operation reads it."""

    op: str
    attributes: Mapping[str, Any]
    count: int  # of inputs
    batch: int | None  # samples in a batch, where the model says it

    def constant(self, place: int) -> Any:
        """An input as an array, or None where it depends on the model's input or is missing."""

    def needed(self, place: int, what: str) -> Any:
        """A constant input; others are refused."""

    def value(self, place: int = 0) -> str:
        """An input as a value of the graph."""

    def shape(self, place: int = 0) -> tuple[int, ...]:
        """The shape of an input, without the batch."""

    def held(self, role: str, values: Any) -> str:
        """A new tensor of the model."""

    def aligned(self) -> list[str]:
        """Both inputs of a function that broadcasts, with as many dimensions."""

    def negative(self, place: int) -> str:
        """An input times -1."""

    def inverse(self, place: int) -> str:
        """The reciprocal of an input."""

    def give(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Attributes | None = None,
        tensors: Mapping[str, str] | None = None,
    ) -> None:
        """The node of the graph that gives the output."""

    def between(self, op: str, inputs: Sequence[str], attributes: Attributes) -> str:
        """A further node of the graph, on the way to the output."""

    def refuse(self, why: str) -> ModelError:
        """An error that names the node."""


class FrontEnd(Protocol):
    """Where an operation says what the engine is to compute; each call gives the node's output."""

    def tensor(self, node: Node, role: str) -> Floats:
        """A tensor of the node."""

    def convolution(self, node: Node) -> None:
        """A convolution by the node's attributes."""

    def linear(self, node: Node) -> None:
        """A product with the node's weight."""

    def affine(self, node: Node, scale: NDArray[np.float64], shift: NDArray[np.float64]) -> None:
        """Scale and shift per channel."""

    def clamp(self, node: Node, low: float, high: float) -> None:
        """Values below and above two bounds are set to them."""

    def activation(self, node: Node, slope: float = 0.0) -> None:
        """The operation's own `kernel`, for each value alone."""

    def pool(self, node: Node, mean: bool) -> None:
        """The largest or the mean value of windows, by the node's attributes."""

    def adaptive_pool(self, node: Node) -> None:
        """The mean of as many windows as the node's `size` says."""

    def add(self, node: Node) -> None:
        """The sum of two values."""

    def multiply(self, node: Node) -> None:
        """The product of two values, each with each."""

    def constant(self, node: Node, values: Floats) -> None:
        """Values that every sample has alike."""

    def transposed_convolution(self, node: Node) -> None:
        """A transposed convolution by the node's attributes."""

    def convolution_of_rows(self, node: Node, attributes: Attributes) -> None:
        """A convolution of images of one row, by attributes of conv2d."""

    def matmul(self, node: Node) -> None:
        """The matrix product of two values."""

    def mean(self, node: Node) -> None:
        """The mean over the node's `axes`."""

    def layer_norm(self, node: Node) -> None:
        """Zero mean and unit variance over the last dimensions."""

    def group_norm(self, node: Node) -> None:
        """Zero mean and unit variance over groups of channels."""

    def prelu(self, node: Node) -> None:
        """Negative values times the node's factors."""

    def permute(self, node: Node) -> None:
        """Dimensions in another order."""

    def reshape(self, node: Node) -> None:
        """Dimensions of other sizes."""

    def slice(self, node: Node) -> None:
        """Some of the values along one dimension."""

    def pad(self, node: Node) -> None:
        """A border around a value."""

    def concatenate(self, node: Node) -> None:
        """Values one after another along the node's `axis`."""

    def flatten(self, node: Node) -> None:
        """All features of a sample in one row."""

    def softmax(self, node: Node) -> None:
        """Shares over the node's `axis`."""


class Operation:
    """One operation. Subclasses say what is special; the defaults are those of a function of each value alone."""

    name: ClassVar[str]
    inputs: ClassVar[int | None] = 1  # None: two or more
    tensors: ClassVar[Mapping[str, int | None]] = {}  # role → dimensions; None: any number of them
    optional: ClassVar[Mapping[str, int | None]] = {}  # the same, for tensors that may be missing
    attributes: ClassVar[Mapping[str, Check]] = {}  # name → whether a value fits
    optional_attributes: ClassVar[frozenset[str]] = frozenset()  # that a file may leave out
    sized: ClassVar[bool] = False  # whether the engine must know the shape of a sample to say what to compute

    windowed: ClassVar[bool] = False  # whether `reference` builds windows or borders, which no result's size bounds

    # How PyTorch spells it.
    modules: ClassVar[tuple[str, ...]] = ()  # classes of torch.nn
    functions: ClassVar[Mapping[str, str]] = {}  # of torch, torch.nn.functional or a tensor → the method that reads it
    onnx_nodes: ClassVar[Mapping[str, str]] = {}  # operation of ONNX → the method that reads it
    aten: ClassVar[Mapping[str, str]] = {}  # the same of torch.export, where it has names or arguments of its own
    view: ClassVar[bool] = False  # whether the result may share memory with the input
    pointwise: ClassVar[bool] = False  # whether it is a function of each value alone, whatever the dimensions are
    vanishes: ClassVar[bool] = False  # whether the result is the input itself where the network evaluates

    def takes(self, inputs: int) -> bool:
        """Whether it reads so many values."""
        return inputs >= 2 if self.inputs is None else inputs == self.inputs

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return Traced(in_place=bool(getattr(module, "inplace", False)))

    def read_call(self, *args: Any, **kwargs: Any) -> Traced:
        """What a function or method does, by its arguments after the first: here, `inplace` alone."""

        def read(inplace: bool = False) -> Traced:
            return Traced(in_place=bool(inplace))

        return read(*args, **kwargs)

    def channels(self, role: str, shape: tuple[int, ...], attributes: Attributes) -> int:
        """The channels of the result, as one of the tensors has them; all must agree."""
        return shape[0]

    def check(self, node: Node, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse attributes and shapes of tensors (by role) that do not fit together."""

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result, by the shapes of inputs and tensors (by role)."""
        return inputs[0]

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy, for batches (batch, *shape): plain, for others to be held to."""
        raise NotImplementedError

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        return getattr(functional, self.name)(x[0])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        raise NotImplementedError

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form: here, of a function of one value without settings."""
        node.give(self.name, [node.value()])

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        raise NotImplementedError

    def needs_shapes(self, node: Node, inputs: Sequence[Shape]) -> bool:
        """Whether the engine must know the shapes of these inputs to say what to compute; None is any shape."""
        return self.sized


def whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number, at least `least`, of at most 31 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 31


def pair_of(least: int) -> Check:
    """Whether a value is [height, width], both at least `least`."""
    return lambda value: (
        isinstance(value, list | tuple) and len(value) == 2 and all(whole(item, least) for item in value)
    )


def number(value: Any) -> bool:
    """Whether a value is a finite float32."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_FLOAT


def truth(value: Any) -> bool:
    """Whether a value is true or false."""
    return isinstance(value, bool)


def as_pair(value: Any) -> list[int]:
    """PyTorch's way to name a size, one number or two, as [height, width]."""
    pair = list(value) if isinstance(value, tuple | list) else [value, value]
    if not all(isinstance(item, int) for item in pair) or len(pair) not in (1, 2):
        raise Untraceable(f"a size must be one or two integers. Received: {value!r}")
    return pair * 2 if len(pair) == 1 else pair


def present(**roles: Any) -> dict[str, Any]:
    """Tensors by role, without those that a module does not have."""
    return {role: tensor for role, tensor in roles.items() if tensor is not None}


def expect(received: Side, expected: int, what: str) -> None:
    """Refuse a side that is known and is another one."""
    if received not in (None, expected):
        raise ModelError(f"it takes {expected:,} {what}. Received: {received:,}.")


def image(shape: Shape, name: str) -> tuple[Side, Side, Side]:
    """Channels, height and width of an image; unknown where the shape is."""
    if shape is None:
        return None, None, None
    if len(shape) != 3:
        raise ModelError(f"{name} takes images. Received: values of shape {shape}.")
    return shape[0], shape[1], shape[2]
