"""A network from an ONNX model that another tool made: a graph of our operations, and its tensors.

The file is a stranger's. Nothing of it is run; its size and its tensors' sizes are checked before they are read,
external data are refused, and the graph is held to the rules of graphs from our own files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from ..errors import ModelError, WireError
from ..graph import INPUT, Node
from ..model import Layout, SparseModel, TensorSpec
from ..ops import OPERATIONS
from ..ops.base import Attributes
from ..ops.constant import attributes_of
from ..wire.artefact import MAX_FILE
from ..wire.graphs import MAX_NODES, parse_graph
from .onnx_folding import BATCH, folded, folds
from .onnx_patterns import written_out_gelus

READERS = {name: (operation, read) for operation in OPERATIONS.values() for name, read in operation.onnx_nodes.items()}
SAME = ("Identity", "Dropout")  # give what they read, where a network evaluates
NUMBERS: dict[int, int] = {
    TensorProto.FLOAT: 4,
    TensorProto.DOUBLE: 8,
    TensorProto.INT64: 8,
    TensorProto.INT32: 4,
    TensorProto.BOOL: 1,
}
MAX_SIDES = 32
MOST_COMPUTED = 1 << 26  # values of all constants that nodes compute


@dataclass(frozen=True)
class Imported:
    """What an ONNX model says: its tensors with their zeros pruned, its graph, and the shape of a sample."""

    model: SparseModel
    graph: tuple[Node, ...]
    shape: tuple[int, ...]


def read_onnx(path: Path) -> Imported:
    """Read a model; what it does and no graph has is refused by name."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE:
            raise WireError(f"a model file has at most {MAX_FILE:,} bytes. Received: {size:,}.")
        proto = onnx.load_model_from_string(path.read_bytes())
    except FileNotFoundError:
        raise WireError(f"there is no file {path}.") from None
    except OSError as error:
        raise WireError(f"{path} cannot be read: {error.strerror or error}.") from error
    except WireError:
        raise
    except Exception as error:  # protobuf's own classes of errors
        raise WireError(f"{path} is not an ONNX model: {error}") from None
    try:
        return _Reader(proto.graph).read()
    except (ModelError, WireError) as error:
        raise WireError(f"{path}: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise WireError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def _array(tensor: TensorProto, what: str) -> np.ndarray[Any, Any]:
    """A tensor of the file, after its sizes were checked."""
    sides = tuple(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise WireError(f"{what} lies in another file; save the model as one file.")
    if tensor.data_type not in NUMBERS:
        kind = TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in TensorProto.DataType.values() else "?"
        raise WireError(f"{what} is of type {kind}; a graph has float32.")
    held = max(len(tensor.raw_data), 10 * sum(len(getattr(tensor, name)) for name in DATA))
    if len(sides) > MAX_SIDES or min(sides, default=0) < 0 or prod(sides) * NUMBERS[tensor.data_type] > max(held, 64):
        raise WireError(f"{what} says it is of shape {sides[:8]}, which it does not hold.")
    return np.array(numpy_helper.to_array(tensor))


DATA = ("float_data", "double_data", "int32_data", "int64_data")


def _written(node: Any) -> Any:
    """What a node `Constant` holds."""
    given = node.attribute[0]
    if given.name == "value":
        return _array(given.t, f"the constant {node.output[0]!r}")
    if given.name not in ("value_float", "value_floats", "value_int", "value_ints"):
        raise WireError(f"the constant {node.output[0]!r} is no array of numbers: {given.name}.")
    kind = np.float32 if "float" in given.name else np.int64
    return np.array(onnx.helper.get_attribute_value(given), kind)


class _Reader:
    """The nodes of an ONNX graph, one after the other."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.constants: dict[str, Any] = {t.name: _array(t, f"the tensor {t.name!r}") for t in graph.initializer}
        self.tensors: dict[str, Any] = {}
        self.nodes: list[Node] = []
        self.names: dict[str, str] = {}  # ONNX's value → ours
        self.shapes: dict[str, tuple[int, ...]] = {}  # of our values
        self.batch: int | None = None
        self.spare = MOST_COMPUTED
        self.gelus: dict[str, str] = {}  # output → input, of functions that several nodes write out

    def read(self) -> Imported:
        inputs = [value for value in self._graph.input if value.name not in self.constants]
        if len(inputs) != 1 or len(self._graph.output) != 1:
            raise WireError(
                f"a graph has one input and one output. Received: {len(inputs)}, {len(self._graph.output)}."
            )
        if len(self._graph.node) > MAX_NODES:
            raise WireError(f"a graph has at most {MAX_NODES:,} nodes. Received: {len(self._graph.node):,}.")
        sides = [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim]
        if len(sides) < 2 or min(sides[1:]) < 1:
            raise WireError(f"the input must say the shape of a sample, (batch, …). Received: {sides}.")
        self.batch = sides[0] or None
        self.names[inputs[0].name], self.shapes[INPUT] = INPUT, tuple(sides[1:])
        for node in self._graph.node:
            if node.op_type == "Constant":
                self.constants[node.output[0]] = _written(node)
        self.gelus = written_out_gelus(self._graph.node, self.constants)
        wanted = self._wanted(self._graph.output[0].name)
        for place, node in enumerate(self._graph.node):
            if place in wanted and node.op_type != "Constant":
                self._read(node, place)
        output = self.names.get(self._graph.output[0].name)
        if output is None or output == INPUT or not self.nodes:
            raise WireError("the output does not depend on the input.")
        return self._finish(output, tuple(sides[1:]))

    def _wanted(self, output: str) -> set[int]:
        """Places of the nodes on which the output depends, without those that a written-out function replaces."""
        names, places = {output}, set()
        for place in reversed(range(len(self._graph.node))):
            node = self._graph.node[place]
            if names.intersection(node.output):
                places.add(place)
                names.update([self.gelus[node.output[0]]] if node.output[0] in self.gelus else node.input)
        return places

    def _read(self, node: Any, place: int) -> None:
        where = f"node {place} ({node.op_type} {node.name[:80]!r})"
        attributes = {given.name: onnx.helper.get_attribute_value(given) for given in node.attribute}
        attributes = {k: v.decode(errors="replace") if isinstance(v, bytes) else v for k, v in attributes.items()}
        names, standard = list(node.input), node.domain in ("", "ai.onnx")
        alike = [name for name in names if name]
        if node.output[0] in self.gelus:
            call = _Call(self, "Gelu", where, {}, [self.gelus[node.output[0]]], node.output[0])
            call.give("gelu", [call.value()])
        elif node.op_type in SAME and names:
            for table in (self.constants, self.names):
                if names[0] in table:
                    table[node.output[0]] = table[names[0]]
        elif node.op_type == "Shape" and standard:
            self.constants[node.output[0]] = self._sides(names[0], attributes)
        elif standard and folds(node.op_type) and alike and all(name in self.constants for name in alike):
            if isinstance(attributes.get("value"), TensorProto):
                attributes["value"] = _array(attributes["value"], where).ravel()[0]
            try:
                made = folded(node.op_type, [self.constants[name] for name in alike], attributes)
            except (WireError, ValueError, TypeError, KeyError, IndexError) as error:
                raise WireError(f"{where}: {error}.") from None
            self.spare -= 0 if np.may_share_memory(made, self.constants[alike[0]]) else made.size
            if self.spare < 0:
                raise WireError(f"{where}: constants that a model computes have at most {MOST_COMPUTED:,} values.")
            self.constants[node.output[0]] = made
        elif node.op_type in READERS and standard:
            operation, read = READERS[node.op_type]
            try:
                getattr(operation, read)(_Call(self, node.op_type, where, attributes, names, node.output[0]))
            except ModelError as error:
                raise WireError(f"{where}: {error}") from None
        else:
            raise WireError(f"{where}: no graph has this operation.")

    def _sides(self, name: str, attributes: dict[str, Any]) -> Any:
        """What Shape gives: whole numbers, the batch's size among them."""
        if name in self.constants:
            sides = np.array(np.shape(self.constants[name]), np.int64)
        else:
            sides = np.array([self.batch or BATCH, *self.shapes[self.names[name]]], np.int64)
        return sides[attributes.get("start", 0) : attributes.get("end")]

    def add(self, name: str, op: str, inputs: Sequence[str], attributes: Attributes, tensors: dict[str, str]) -> str:
        """A node of ours, by a name that nothing has."""
        name = "".join(c if c.isalnum() else "_" for c in name[-200:]) or "value"
        count, unused = 1, name
        while unused in self.shapes:
            unused, count = f"{name}_{count}", count + 1
        node = Node(op, unused, tuple(inputs), tensors, attributes)
        held = {role: self.tensors[tensor].shape for role, tensor in tensors.items()}
        OPERATIONS[op].check(node, held)
        made = OPERATIONS[op].shape(node, [self.shapes[value] for value in inputs], held)
        assert made is not None
        self.shapes[unused] = tuple(int(side or 0) for side in made)
        self.nodes.append(node)
        return unused

    def _finish(self, output: str, shape: tuple[int, ...]) -> Imported:
        wanted, kept = {output}, []
        for node in reversed(self.nodes):
            if node.output in wanted:
                wanted.update(node.inputs)
                kept.append(node)
        kept.reverse()
        used = {name for node in kept for name in node.tensors.values()}
        named = {name: tensor for name, tensor in self.tensors.items() if name in used}
        layout = Layout(tuple(TensorSpec(name, tensor.shape) for name, tensor in named.items()))
        flat = np.concatenate([np.zeros(0, np.float32), *(tensor.ravel() for tensor in named.values())])
        graph = parse_graph([node.to_json() for node in kept], layout)
        return Imported(SparseModel(layout, flat, flat != 0), graph, shape)


@dataclass
class _Call:
    """One node, as operations read it (see ops.base.OnnxNode)."""

    reader: _Reader
    op: str
    where: str
    attributes: dict[str, Any]
    names: list[str]
    output: str

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def batch(self) -> int | None:
        return self.reader.batch

    def refuse(self, why: str) -> WireError:
        return WireError(f"{self.where}: {why}.")

    def constant(self, place: int) -> Any:
        return self.reader.constants.get(self.names[place]) if place < len(self.names) else None

    def needed(self, place: int, what: str) -> Any:
        found = self.constant(place)
        if found is None:
            raise self.refuse(f"its {what} must be a constant")
        if found.dtype.kind == "i" and (found == BATCH).any():
            if self.op != "Reshape" or (found[1:] == BATCH).any():
                raise self.refuse(f"its {what} depends on the batch, which the model leaves open")
            found = np.array([0, *found[1:]])  # which keeps the batch
        return found

    def shape(self, place: int = 0) -> tuple[int, ...]:
        return self.reader.shapes[self.value(place)]

    def value(self, place: int = 0) -> str:
        name = self.names[place] if place < len(self.names) else ""
        if name in self.reader.names:
            return self.reader.names[name]
        raise self.refuse(f"it reads {name!r}, which does not depend on the input")

    def held(self, role: str, values: Any) -> str:
        name = f"{self.output}.{role}"
        while name in self.reader.tensors:
            name += "'"
        self.reader.tensors[name] = np.ascontiguousarray(values, np.float32)
        return name

    def give(self, op: str, inputs: Sequence[str], attributes: Attributes | None = None, tensors: Any = None) -> None:
        made = self.reader.add(self.output, op, inputs, dict(attributes or {}), dict(tensors or {}))
        self.reader.names[self.output] = made

    def between(self, op: str, inputs: Sequence[str], attributes: Attributes) -> str:
        return self.reader.add(f"{self.output}_{op}", op, inputs, dict(attributes), {})

    def aligned(self) -> list[str]:
        return [self._side(place, lambda values: values) for place in range(2)]

    def negative(self, place: int) -> str:
        return self._side(place, lambda values: -values) if self.constant(place) is not None else self._times(place, -1)

    def inverse(self, place: int) -> str:
        if self.constant(place) is not None:
            return self._side(place, lambda values: 1 / values)
        return self.reader.add(f"{self.output}_inverse", "reciprocal", [self.value(place)], {}, {})

    def _times(self, place: int, factor: float) -> str:
        value, rank = self.value(place), len(self.shape(place))
        by = attributes_of(np.full([1] * rank, factor, np.float32))
        constant = self.reader.add(f"{self.output}_factor", "constant", [], by, {})
        return self.reader.add(f"{self.output}_scaled", "mul", [value, constant], {}, {})

    def _side(self, place: int, change: Any) -> str:
        """An input as a value; a constant gets the dimensions of the other input, without the batch."""
        values = self.constant(place)
        if values is None:
            return self.value(place)
        rank = len(self.shape(1 - place)) + 1
        made = np.asarray(change(values.astype(np.float64)), np.float32)
        made = made.reshape((1,) * (rank - made.ndim) + made.shape)
        if made.ndim != rank or made.shape[0] != 1:
            raise self.refuse(f"a constant of shape {values.shape} has other values for every sample")
        name = self.held("value", made[0])
        return self.reader.add(f"{self.output}_value", "parameter", [], {}, {"value": name})
