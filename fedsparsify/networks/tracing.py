"""From a torch module to a graph of plain data, by torch.fx; on the training side only.

What a graph may hold, and how PyTorch spells it as a module, a function or a method, is in `ops`. Operations may work
in place. Anything else is `Untraceable`: the network trains all the same, only its file has no graph.
"""

from __future__ import annotations

import operator
import re
import traceback
from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from ..graph import INPUT, Node
from ..keyed import KeyedDropout
from ..ops import OPERATIONS, Operation
from ..ops.base import BATCH, VALUE, Traced, Untraceable
from . import layout_of
from .modules import changed_forward
from .traced_values import Value

TORCH = str(Path(nn.__file__).parents[1])
PLACE = "place"  # under this key a node of torch.fx keeps the user's line that made it
IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor")


def trace(module: nn.Module, training: bool = False, sample: tuple[int, ...] | None = None) -> tuple[Node, ...]:
    """The network as it evaluates, node by node.

    Where torch.fx does not suffice and the shape of a sample is known, torch.export is asked (`exporting.py`). As the
    network trains, keyed dropouts are nodes too, and a layer's node says by the attribute `module` which one it is.

    Args:
        module: the network.
        training: as the network trains.
        sample: the shape of one sample.

    Returns:
        The nodes in the order of their computation; a model's file holds them as its fact `graph`.

    Raises:
        Untraceable: if the network does something that a graph cannot hold; the message names it and its line.

    Example:
        >>> from torch import nn
        >>> from fedsparsify.networks.tracing import trace
        >>> [node.op for node in trace(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU()))]
        ['flatten', 'linear', 'relu']
    """
    if why := changed_forward(module):
        raise Untraceable(f"{why}, which no graph has")
    try:
        return _trace(module, training)
    except Untraceable as error:
        if sample is None or training:
            raise
        return _export(module, sample, error)


def _export(module: nn.Module, sample: tuple[int, ...], first: Untraceable) -> tuple[Node, ...]:
    """By torch.export; where that fails too, what torch.fx said stands first."""
    from .exporting import export

    try:
        return export(module, sample, _place_of)
    except Untraceable as error:
        raise Untraceable(f"{first}. By torch.export: {error}") from error
    except Exception as error:  # torch.export raises errors of many classes
        raise first from error


def _trace(module: nn.Module, training: bool) -> tuple[Node, ...]:
    try:
        module = deepcopy(module).train(training)  # a forward may set attributes, which would hold proxies afterwards
        # torch.fx goes into the forward of what it is given, and a layer is to stay one node.
        root = nn.Sequential(module) if type(module) in MODULES else module
        traced = _Tracer().trace(root)
    except Exception as error:  # a user's forward may raise anything while it is traced
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        frames = traceback.walk_tb(error.__traceback__)
        where = _place([(frame, line) for frame, line in frames][::-1])
        raise Untraceable(f"torch.fx cannot trace the network: {reason}{where}") from error
    for name, tensor in (*module.named_buffers(), *module.named_parameters()):
        if isinstance(tensor, fx.Proxy):
            raise Untraceable(f"forward assigns {name!r}, which no graph has")
    return _Reader(root, module, training).read(traced)


def _place_of(stack: str) -> str:
    """The innermost line of a user's own code in a printed stack, as the end of a message."""
    for file, line, function in reversed(re.findall(r'File "([^"]+)", line (\d+), in (\S+)', stack)):
        if not file.startswith(TORCH):
            return f" (at {Path(file).name}:{line}, in {function})"
    return ""


class _Proxy(fx.Proxy):
    """A proxy that knows `x += y`; torch's own records it as `x = x + y`, which is another network if x has aliases."""


def _recorded(function: Any) -> Any:
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", function, (proxy, other), {})


for _name in IN_PLACE:
    setattr(_Proxy, f"__{_name}__", _recorded(getattr(operator, _name)))


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, KeyedDropout) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        # Not by `record_stack_traces`: torch imports its compiler for that, which takes seconds.
        node = super().create_node(*args, **kwargs)
        node.meta[PLACE] = _place(traceback.walk_stack(None))
        return node


def _place(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The innermost line of a user's own code inside `trace`, as the end of a message; frames come innermost first."""
    for frame, line in frames:
        code = frame.f_code
        if code is _trace.__code__:
            break
        if code.co_filename != __file__ and not code.co_filename.startswith(TORCH):
            return f" (at {Path(code.co_filename).name}:{line}, in {code.co_name})"
    return ""


MODULES = {getattr(nn, name): operation for operation in OPERATIONS.values() for name in operation.modules}
MODULES[KeyedDropout] = OPERATIONS["dropout"]
# A function's name, without the underscore of its form in place → operation, and its method that reads the arguments.
CALLS = {name: (operation, read) for operation in OPERATIONS.values() for name, read in operation.functions.items()}
FUNCTIONS = {
    getattr(space, spelled): spelled
    for name in CALLS
    for spelled in (name, f"{name}_")
    for space in (functional, torch)
    if hasattr(space, spelled)
} | {operator.add: "add", operator.iadd: "add_", operator.mul: "mul", operator.imul: "mul_"}


def _of_module(module: nn.Module, path: str) -> tuple[Operation, Traced]:
    """What a leaf module does."""
    operation = MODULES.get(type(module))
    if operation is None:
        raise Untraceable(f"{path}: no graph has a {type(module).__name__}")
    return operation, operation.read_module(module)


def _of_call(node: fx.Node, values: Collection[fx.Node]) -> tuple[Operation, Traced]:
    """What a function or a tensor's method does; a name that ends in an underscore works in place, as torch's do."""
    spelled = node.target if node.op == "call_method" else FUNCTIONS.get(node.target)
    name = spelled.removesuffix("_") if isinstance(spelled, str) else ""
    if name not in CALLS:
        raise Untraceable(f"the network calls {getattr(node.target, '__name__', node.target)}, which no graph has")

    def known(argument: Any) -> Any:
        if isinstance(argument, tuple | list):
            return type(argument)(map(known, argument))
        return BATCH if _is_batch_size(argument) else VALUE if argument in values else argument

    operation, read = CALLS[name]
    try:
        arguments = map(known, node.args[1:])
        traced = getattr(operation, read)(*arguments, **{key: known(value) for key, value in node.kwargs.items()})
    except TypeError as error:
        raise Untraceable(f"{node.name}: {error}") from error
    return operation, traced if spelled == name else replace(traced, in_place=True)


def _arguments(node: fx.Node) -> list[fx.Node]:
    """The nodes that a call is given, by themselves or in a list."""
    given = [*node.args, *node.kwargs.values()]
    flat = [item for argument in given for item in (argument if isinstance(argument, tuple | list) else [argument])]
    return [item for item in flat if isinstance(item, fx.Node)]


def _is_batch_size(node: Any) -> bool:
    """Whether a value is `x.size(0)` or `x.shape[0]`."""
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_method" and node.target == "size":
        return node.args[1:] == (0,)
    if node.target is not operator.getitem or node.args[1] != 0:
        return False
    source = node.args[0]
    return isinstance(source, fx.Node) and (source.target is getattr or source.target == "size")


class _Reader:
    """Turns fx nodes into ours. What vanishes (dropout) is an alias of the value that it was made from."""

    def __init__(self, root: nn.Module, module: nn.Module, training: bool = False) -> None:
        self._module, self._whole, self._training = root, module, training
        # By identity: a tensor that two layers share has one name in the layout, for both of them.
        known = {spec.name for spec in layout_of(module)}
        tensors = (*module.named_buffers(), *module.named_parameters())
        self._names = {id(tensor): name for name, tensor in tensors if name in known}
        self._values: dict[fx.Node, Value] = {}
        self._nodes: list[Node] = []

    def read(self, traced: fx.Graph) -> tuple[Node, ...]:
        nodes: Any = traced.nodes
        for node in nodes:
            try:
                if node.op == "output":
                    return self._finish(node)
                self._read(node)
            except Untraceable as error:
                raise Untraceable(f"{error}{node.meta.get(PLACE, '')}") from None
        raise Untraceable("the network returns nothing")

    def _read(self, node: fx.Node) -> None:
        match node.op:
            case "placeholder":
                self._placeholder(node)
            case "call_module":
                self._call(node, *_of_module(self._module.get_submodule(str(node.target)), str(node.target)))
            case "call_function" | "call_method":
                self._function(node)
            case _:
                raise Untraceable(f"the network reads the tensor {node.target!r} outside of a layer")

    def _placeholder(self, node: fx.Node) -> None:
        if self._values:
            raise Untraceable(f"the network takes more than one input: {node.target!r}")
        self._values[node] = Value(INPUT)

    def _function(self, node: fx.Node) -> None:
        if node.op == "call_function" and node.target is getattr:
            if node.args[1:] != ("shape",):
                raise Untraceable(f"the network reads {node.args[1]!r} of a value")
            return  # a shape matters only to the view that uses it
        if _is_batch_size(node) or (node.op == "call_method" and node.target == "size"):
            return
        self._call(node, *_of_call(node, self._values.keys()))

    def _call(self, node: fx.Node, operation: Operation, traced: Traced) -> None:
        values = [self._values[a] for a in _arguments(node) if a in self._values]
        if not operation.takes(len(values)):
            raise Untraceable(f"{operation.name} at {node.name!r} takes {len(values)} values of the network")
        if operation.vanishes and not (self._training and operation.name == "dropout"):
            self._values[node] = values[0]
            return
        if unknown := [role for role, tensor in traced.tensors.items() if id(tensor) not in self._names]:
            raise Untraceable(f"{operation.name} at {node.name!r} computes its {unknown[0]} instead of keeping it")
        named = {role: self._names[id(tensor)] for role, tensor in traced.tensors.items()}
        inputs = tuple(value.read() for value in values)
        attributes = dict(traced.attributes)
        if self._training and node.op == "call_module":
            attributes["module"] = self._name_of(str(node.target))
        self._nodes.append(Node(operation.name, node.name, inputs, named, attributes))
        if traced.in_place:
            values[0].write(node.name)
            self._values[node] = values[0]
        else:
            self._values[node] = values[0].view(node.name) if operation.view else Value(node.name)

    def _name_of(self, target: str) -> str:
        """A layer's name in the network; a network that is one layer was put into a Sequential."""
        return target if self._whole is self._module else ""

    def _finish(self, node: fx.Node) -> tuple[Node, ...]:
        value = node.args[0]
        if not isinstance(value, fx.Node) or value not in self._values:
            raise Untraceable("the network returns something other than one tensor")
        output = self._values[value].read()
        if output == INPUT:
            raise Untraceable("the network returns its input")
        return needed(self._nodes, output)


def needed(nodes: Sequence[Node], output: str) -> tuple[Node, ...]:
    """The nodes that a value is made from, itself last."""
    wanted, kept = {output}, []
    for node in reversed(nodes):
        if node.output in wanted:
            wanted.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))
