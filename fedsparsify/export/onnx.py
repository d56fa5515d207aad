"""As an ONNX model, node by node from the graph in the file. Weights are dense: ONNX runtimes do not skip zeros."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import ModelError, WireError
from ..graph import INPUT, Node
from ..model import Floats, SparseModel
from ..ops import OPERATIONS, constants_of, shapes_of
from ..wire.files import atomic

OPSET, IR_VERSION = 20, 9  # the first with Gelu, and the oldest that carries it: the more runtimes read it


def write_onnx(path: Path, model: SparseModel, facts: Mapping[str, object], graph: Sequence[Node]) -> None:
    """The network, from preprocessed samples (batch, *shape) to logits."""
    if not isinstance(shape := facts.get("shape"), list):
        raise WireError("the file does not say the shape of a sample.")
    shapes = shapes_of(graph, {spec.name: spec.shape for spec in model.layout}, shape)
    builder = Builder(model, shapes, graph)
    for node in graph:
        OPERATIONS[node.op].onnx(node, builder)
    result = graph[-1].output
    made = helper.make_graph(
        builder.nodes,
        str(facts.get("network", "network")),
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, ["batch", *shapes[result]])],
        list(builder.initializers.values()),
    )
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    proto.producer_name = "fedsparsify"
    kept = {name: value for name, value in facts.items() if name not in ("graph", "state")}
    helper.set_model_props(proto, {name: json.dumps(value) for name, value in kept.items()})
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"the network does not make a valid ONNX model: {error}") from error
    with atomic(path) as file:
        file.write(proto.SerializeToString())


class Builder:
    """ONNX nodes and the tensors they hold, as operations write them (see ops.base.Onnx)."""

    def __init__(self, model: SparseModel, shapes: Mapping[str, tuple[int, ...]], graph: Sequence[Node]) -> None:
        self._tensors, self.shapes = model.host_tensors(), shapes
        self._values = {INPUT, *(node.output for node in graph)}
        self.constants: Collection[str] = constants_of(graph)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}

    def emit(self, op: str, node: Node, *more: str, **attributes: Any) -> None:
        """A node that reads the inputs of ours, and `more`, and gives its output."""
        self.between(op, [*node.inputs, *more], node.output, **attributes)

    def between(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """A node on the way, whose output is called `name`."""
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def tensor(self, name: str) -> Floats:
        """A tensor of the model."""
        return self._tensors[name]

    def held(self, name: str) -> str:
        """A tensor of the model as an input of a node."""
        return self.constant(name, self._tensors[name])

    def constant(self, name: str, value: Any) -> str:
        """Any other constant as an input of a node."""
        name = f"{name}.tensor" if name in self._values else name
        self.initializers.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name
