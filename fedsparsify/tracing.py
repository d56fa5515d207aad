"""From a torch module to a graph of plain data, by torch.fx; on the training side only.

Supported, as a module, a function or a tensor method where torch has one: Linear, Conv2d, BatchNorm1d and 2d, ReLU,
ReLU6, Sigmoid, Tanh, SiLU, Hardswish, GELU (exact), LeakyReLU, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, Flatten (and
`x.view(x.size(0), -1)`), Softmax, the addition of two values; Dropout and Identity vanish. Anything else is
`Untraceable`: the network trains all the same, only its file says no graph.
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from .graph import INPUT, Node
from .keyed import KeyedDropout
from .networks import layout_of
from .tracing_ops import CALLS, FUNCTIONS, Parts, Untraceable, is_batch_size, of_module


def graph_facts(module: nn.Module) -> dict[str, Any]:
    """What a model's file says of the network: its graph, or why there is none."""
    try:
        return {"graph": [node.to_json() for node in trace(module)]}
    except Untraceable as error:
        return {"graph_missing": str(error)}


def trace(module: nn.Module) -> tuple[Node, ...]:
    """The network as it evaluates, node by node."""
    training = {child: child.training for child in module.modules()}
    module.eval()
    try:
        traced = _Tracer().trace(module)
    except Exception as error:  # a user's forward may raise anything while it is traced
        raise Untraceable(f"torch.fx cannot trace the network: {str(error).splitlines()[0] or error!r}") from error
    finally:
        for child, mode in training.items():
            child.training = mode
    return _Reader(module).read(traced)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, KeyedDropout) or super().is_leaf_module(m, module_qualified_name)


class _Reader:
    """Turns fx nodes into ours. A value that vanishes (dropout) stands under the name of what it was made from."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        # By identity: a tensor that two layers share has one name in the layout, whichever layer asks.
        known = {spec.name for spec in layout_of(module)}
        tensors = (*module.named_buffers(), *module.named_parameters())
        self._names = {id(tensor): name for name, tensor in tensors if name in known}
        self._values: dict[fx.Node, str] = {}
        self._nodes: list[Node] = []

    def read(self, traced: fx.Graph) -> tuple[Node, ...]:
        nodes: Any = traced.nodes
        for node in nodes:
            match node.op:
                case "placeholder":
                    self._placeholder(node)
                case "call_module":
                    self._call(node, of_module(self._module.get_submodule(str(node.target)), node))
                case "call_function" | "call_method":
                    self._function(node)
                case "output":
                    return self._finish(node)
                case _:
                    raise Untraceable(f"the network reads the tensor {node.target!r} outside of a layer")
        raise Untraceable("the network returns nothing")

    def _placeholder(self, node: fx.Node) -> None:
        if self._values:
            raise Untraceable(f"the network takes more than one input: {node.target!r}")
        self._values[node] = INPUT

    def _function(self, node: fx.Node) -> None:
        if node.op == "call_function" and node.target is getattr:
            if node.args[1:] != ("shape",):
                raise Untraceable(f"the network reads {node.args[1]!r} of a value")
            return  # a shape matters only to the view that uses it
        if is_batch_size(node) or (node.op == "call_method" and node.target == "size"):
            return
        key = node.target if node.op == "call_method" else FUNCTIONS.get(node.target, node.target)
        known = CALLS.get(key) if isinstance(key, str) else None
        if known is None:
            raise Untraceable(f"the network calls {getattr(node.target, '__name__', node.target)}, which no graph has")
        self._call(node, known(node))

    def _call(self, node: fx.Node, parts: Parts | None) -> None:
        inputs = tuple(self._values[a] for a in node.all_input_nodes if a in self._values)
        if parts is None:
            self._values[node] = inputs[0]
            return
        op, tensors, attributes = parts
        if op == "add":
            inputs = tuple(self._values[a] for a in node.args if isinstance(a, fx.Node) and a in self._values)
        if len(inputs) != (2 if op == "add" else 1):
            raise Untraceable(f"{op} at {node.name!r} takes {len(inputs)} values of the network")
        if unknown := [role for role, tensor in tensors.items() if id(tensor) not in self._names]:
            raise Untraceable(f"{op} at {node.name!r} computes its {unknown[0]} instead of keeping it")
        named = {role: self._names[id(tensor)] for role, tensor in tensors.items()}
        self._nodes.append(Node(op, node.name, inputs, named, attributes))
        self._values[node] = node.name

    def _finish(self, node: fx.Node) -> tuple[Node, ...]:
        value = node.args[0]
        if not isinstance(value, fx.Node) or value not in self._values:
            raise Untraceable("the network returns something other than one tensor")
        if not self._nodes or self._nodes[-1].output != self._values[value]:
            raise Untraceable("the network's output is not its last operation")
        return tuple(self._nodes)
