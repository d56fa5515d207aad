"""From a torch module to a graph of plain data, by torch.export: where torch.fx does not suffice.

torch.export runs the network once on tensors without data. What depends on shapes (control flow, windows, masks) is
then settled, modules of any class are seen through, and nothing works in place. The price: the graph is for samples of
one shape. What does not depend on parameters becomes a constant of the graph.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any, cast

import torch
from torch import fx, nn

from ..errors import ModelError
from ..graph import INPUT, Node
from ..ops import OPERATIONS
from ..ops.base import Traced, Untraceable
from ..ops.constant import attributes_of
from . import exported_calls, exported_images, exported_largest, exported_layouts, layout_of  # noqa: F401  their handlers are registered
from .exported_handlers import HANDLERS
from .exported_values import BATCH_SIZE, Batch, Exported, Held, batch_in, permuted

IGNORED = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_size", "sym_constrain_range")
CALLS = {
    name: (operation, read)
    for operation in OPERATIONS.values()
    for name, read in (*operation.functions.items(), *operation.aten.items())
}


def export(module: nn.Module, sample: tuple[int, ...], where: Callable[[str], str]) -> tuple[Node, ...]:
    """The network as it evaluates, for samples of a shape; `where` makes a place in the user's code of a stack."""
    module = deepcopy(module).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (torch.zeros(BATCH_SIZE, *sample),), strict=False)
        program = _decomposed(program.run_decompositions({}))
    return Reader(module, program, where).read()


def _decomposed(program: Any) -> Any:
    """The program with calls that no graph has in the words of what they are made of."""
    composed = {call: call.decompose for call in _unknown(program) if _is_composed(call)}
    try:
        return program.run_decompositions(composed) if composed else program
    except RecursionError:  # torch says of some calls that they are made of themselves: they are named later
        for call, made_of in composed.items():
            with suppress(RecursionError):
                program = program.run_decompositions({call: made_of})
        return program


def _name(target: Any) -> str:
    """The name of an operation of ATen, without its overload."""
    return str(getattr(target, "_opname", None) or getattr(target, "__name__", target))


def _unknown(program: Any) -> set[Any]:
    calls = {node.target for node in program.graph.nodes if node.op == "call_function"}
    return {call for call in calls if _name(call) not in CALLS and _name(call) not in HANDLERS}


def _is_composed(call: Any) -> bool:
    """Whether torch itself says what an operation is made of."""
    kind = torch._C.DispatchKey.CompositeImplicitAutograd
    return isinstance(call, torch._ops.OpOverload) and call.has_kernel_for_dispatch_key(kind)


class Reader:
    """Turns the nodes of an exported program into ours."""

    def __init__(self, module: nn.Module, program: Any, where: Callable[[str], str]) -> None:
        self._program, self._where = program, where
        known = {spec.name for spec in layout_of(module)}
        tensors = dict(
            (*module.named_buffers(remove_duplicate=False), *module.named_parameters(remove_duplicate=False))
        )
        first = {id(tensor): name for name, tensor in (*module.named_buffers(), *module.named_parameters())}
        self._held = {
            name: Held(first[id(tensor)], tuple(tensor.shape))
            for name, tensor in tensors.items()
            if first[id(tensor)] in known
        }
        self._tensors = tensors
        self.values: dict[fx.Node, Any] = {}
        self.nodes: list[Node] = []
        self.constants: dict[str, torch.Tensor] = {}
        self._samples: dict[str, tuple[int, ...]] = {}  # of every value of the graph
        self._at: fx.Node | None = None

    @property
    def call_name(self) -> str:
        """The name of the call that is read."""
        assert self._at is not None
        return _name(self._at.target)

    @property
    def call_target(self) -> Any:
        """The function of the call that is read."""
        assert self._at is not None
        return self._at.target

    def read(self) -> tuple[Node, ...]:
        """All nodes that the output is made from."""
        for node in self._program.graph.nodes:
            self._at = node
            try:
                if node.op == "output":
                    return self._finish(node.args[0])
                self.values[node] = self._placeholder(node) if node.op == "placeholder" else self._call(node)
            except (Untraceable, ModelError, TypeError) as error:
                said = str(error) if isinstance(error, ModelError) else f"{node.name}: {error}"
                raise Untraceable(f"{said}{self._where(str(node.meta.get('stack_trace', '')))}") from error
        raise Untraceable("the network returns nothing")

    def _placeholder(self, node: fx.Node) -> Any:
        signature = self._program.graph_signature
        for names in (signature.inputs_to_parameters, signature.inputs_to_buffers):
            if name := names.get(node.name):
                return self._held.get(name, self._tensors[name].detach())
        if name := signature.inputs_to_lifted_tensor_constants.get(node.name):
            return self._program.constants[name]
        if any(isinstance(value, Exported) for value in self.values.values()):
            raise Untraceable(f"the network takes more than one input: {node.target!r}")
        given = Exported(INPUT, tuple(node.meta["val"].shape), Batch(0))
        self._samples[INPUT] = given.sample
        return given

    def _call(self, node: fx.Node) -> Any:
        given: Any = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        args: Any = given[0]
        kwargs: Any = given[1]
        target = cast(Any, node.target)
        if node.target is operator.getitem:
            return args[0][args[1]]
        name = _name(node.target)
        if name in IGNORED:
            return None
        if not _live((args, kwargs)):  # nothing in it depends on the input or on the model
            return target(*args, **kwargs)
        sides = node.meta.get("val")
        if name in HANDLERS:
            return HANDLERS[name](self, sides, *args, **kwargs)
        if name in CALLS:
            return self.operation(name, *args, **kwargs)
        raise Untraceable(f"the network calls {name}, which no graph has")

    # What handlers use.

    def operation(self, name: str, x: Any, *args: Any, **kwargs: Any) -> Exported:
        """A call that is an operation of ours."""
        operation, source = CALLS[name][0], self.value(x)
        traced = self.traced(name, *args, **kwargs)
        if operation.vanishes:
            return source
        if not operation.pointwise:
            source = self.plain(source, operation.name)
        tensors = {role: tensor.name for role, tensor in traced.tensors.items()}
        return self.emit(operation.name, [source], dict(traced.attributes), tensors, like=source)

    @staticmethod
    def traced(name: str, *args: Any, **kwargs: Any) -> Traced:
        """What an operation of ours reads of a call's arguments after the first."""
        operation, read = CALLS[name]
        traced: Traced = getattr(operation, read)(*args, **kwargs)
        for role, tensor in traced.tensors.items():
            if not isinstance(tensor, Held):
                raise Untraceable(f"{operation.name} computes its {role} instead of keeping it")
        return traced

    def value(self, given: Any) -> Exported:
        """An argument as a value of the graph; tensors become constants."""
        if isinstance(given, Exported):
            return given
        if isinstance(given, Held):
            return self._named("parameter", [], {}, {"value": given.name}, given.shape, None)
        tensor = torch.as_tensor(given, dtype=torch.float32).contiguous()
        made = self._named("constant", [], attributes_of(tensor.numpy()), {}, tuple(tensor.shape), None)
        self.constants[made.name] = tensor
        return made

    def plain(self, value: Exported, operation: str) -> Exported:
        """A value whose batch is its first dimension, alone; others are refused."""
        if not value.plain:
            raise Untraceable(f"{operation} of a value of shape {value.sides} that mixes the batch with other sides")
        return value

    def emit(
        self,
        op: str,
        inputs: list[Exported],
        attributes: dict[str, Any] | None = None,
        tensors: dict[str, str] | None = None,
        like: Exported | None = None,
        sides: tuple[int, ...] | None = None,
    ) -> Exported:
        """A node, and its value: with the batch where `like` has it, and the sides that the network says."""
        assert self._at is not None
        like = like or inputs[0]
        if sides is None:
            said = self._at.meta["val"]
            sides = tuple((said[0] if isinstance(said, tuple | list) else said).shape)
        return self._named(op, inputs, attributes or {}, tensors or {}, sides, like.batch)

    def reshaped(self, value: Exported, sides: tuple[int, ...]) -> Exported:
        """The value with other sides."""
        return self.settled(Exported(value.name, sides, batch_in(value, sides)))

    def settled(self, made: Exported) -> Exported:
        """A value that was given other sides, as a value of the graph that has them."""
        old, new = self._samples[made.name], made.sample
        if old == new:
            return made
        if len(new) == 1 and len(old) > 1 and made.batch is not None:
            return self._named("flatten", [made], {"start": 1}, {}, made.sides, made.batch)
        start = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        end = 0
        while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
            end += 1
        attributes = {"start": start + 1, "end": len(old) - end + 1, "sizes": list(new[start : len(new) - end])}
        return self._named("reshape", [made], attributes, {}, made.sides, made.batch)

    def permuted(self, value: Exported, order: list[int]) -> Exported:
        """The value with its dimensions in another order."""
        places, made = permuted(value, order)
        if list(places) == sorted(places):
            return made
        return self._named("permute", [value], {"order": list(places)}, {}, made.sides, made.batch)

    def _named(
        self,
        op: str,
        inputs: list[Exported],
        attributes: dict[str, Any],
        tensors: dict[str, str],
        sides: tuple[int, ...],
        batch: Batch | None,
    ) -> Exported:
        name = unused = self._path(op)
        count = 1
        while unused in self._samples:
            unused, count = f"{name}_{count}", count + 1
        self.nodes.append(Node(op, unused, tuple(value.name for value in inputs), tensors, attributes))
        made = Exported(unused, sides, batch)
        self._samples[unused] = made.sample
        return made

    def _path(self, op: str) -> str:
        """A name for a node: the module that it belongs to, and its operation where that is not the module's."""
        stack = list(self._at.meta.get("nn_module_stack", {}).values()) if self._at is not None else []
        path = re.sub(r"\W+", "_", re.sub(r"^L\['self'\]\.?", "", stack[-1][0])).strip("_") if stack else ""
        kind = str(stack[-1][1]) if stack else ""
        own = "torch.nn.modules" in kind and op not in ("reshape", "permute", "slice", "constant", "parameter")
        return path if own and path else "_".join(filter(None, (path, op)))

    def _finish(self, outputs: Any) -> tuple[Node, ...]:
        from .tracing import needed

        given = outputs if isinstance(outputs, tuple | list) else (outputs,)
        value = self.values[given[0]] if len(given) == 1 and isinstance(given[0], fx.Node) else None
        if not isinstance(value, Exported) or value.batch is None or value.batch != Batch(0):
            raise Untraceable("the network returns something other than one tensor, or writes into its input")
        if value.name == INPUT:
            raise Untraceable("the network returns its input")
        return needed(self.nodes, value.name)


def _live(arguments: Any) -> bool:
    """Whether values of the graph, or tensors of the model, are among some arguments."""
    if isinstance(arguments, dict):
        return any(map(_live, arguments.values()))
    if isinstance(arguments, tuple | list):
        return any(map(_live, arguments))
    return isinstance(arguments, Exported | Held)
