"""As an ONNX model, node by node from the graph in the file. Weights are dense: ONNX runtimes do not skip zeros."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import ModelError, WireError
from ..graph import INPUT, Node
from ..model import SparseModel
from ..wire.files import atomic
from .shapes import Shape, shapes_of

OPSET, IR_VERSION = 20, 9  # the first with Gelu, and the oldest that carries it: the more runtimes read it
SIMPLE = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "hardswish": "HardSwish",
    "gelu": "Gelu",
    "add": "Add",
}


def write_onnx(path: Path, model: SparseModel, facts: Mapping[str, Any], graph: Sequence[Node]) -> None:
    """The network, from preprocessed samples (batch, *shape) to logits."""
    if not isinstance(shape := facts.get("shape"), list) or not isinstance(classes := facts.get("classes"), int):
        raise WireError("the file does not say the shape of a sample and the number of classes.")
    builder = _Builder(model, shapes_of(graph, shape, model.layout), graph)
    for node in graph:
        builder.add(node)
    result = graph[-1].output
    made = helper.make_graph(
        builder.nodes,
        str(facts.get("network", "network")),
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, ["batch", classes])],
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


class _Builder:
    """ONNX nodes and the tensors they hold."""

    def __init__(self, model: SparseModel, shapes: Mapping[str, Shape], graph: Sequence[Node]) -> None:
        self._tensors, self._shapes = model.tensors(), shapes
        self._values = {INPUT, *(node.output for node in graph)}
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}

    def add(self, node: Node) -> None:
        """Append what one of our nodes is in ONNX."""
        a = node.attributes
        match node.op:
            case "linear":
                self._linear(node)
            case "conv2d":
                names = [self._held(node.tensors[role]) for role in ("weight", "bias") if role in node.tensors]
                self._emit(
                    "Conv",
                    node,
                    *names,
                    strides=a["stride"],
                    pads=a["padding"] * 2,
                    dilations=a["dilation"],
                    group=a["groups"],
                )
            case "batch_norm":
                self._batch_norm(node)
            case "relu6":
                bounds = [self._constant(f"{node.output}.{n}", np.float32(n)) for n in (0, 6)]
                self._emit("Clip", node, *bounds)
            case "silu":
                gate = f"{node.output}.gate"
                self.nodes.append(helper.make_node("Sigmoid", list(node.inputs), [gate]))
                self._emit("Mul", node, gate)
            case "leaky_relu":
                self._emit("LeakyRelu", node, alpha=a["slope"])
            case "max_pool2d":
                pads = [*a["padding"], *(p + o for p, o in zip(a["padding"], self._overhang(node), strict=True))]
                self._emit("MaxPool", node, kernel_shape=a["kernel"], strides=a["stride"], pads=pads)
            case "avg_pool2d":
                self._average(node)
            case "adaptive_avg_pool2d":
                self._adaptive(node)
            case "flatten":
                # 0 keeps a dimension as it is; ONNX's own Flatten would merge the leading ones.
                shape = np.array([0] * a["start"] + [-1], np.int64)
                self._emit("Reshape", node, self._constant(f"{node.output}.shape", shape))
            case "softmax":
                self._emit("Softmax", node, axis=a["axis"])
            case op:
                self._emit(SIMPLE[op], node)

    def _linear(self, node: Node) -> None:
        """A product with the transposed weight, which takes inputs of any rank; runtimes fuse it with the sum."""
        weight = self._tensors[node.tensors["weight"]]
        transposed = self._constant(f"{node.tensors['weight']}.T", np.ascontiguousarray(weight.T))
        if "bias" not in node.tensors:
            self._emit("MatMul", node, transposed)
            return
        product = f"{node.output}.product"
        self.nodes.append(helper.make_node("MatMul", [node.inputs[0], transposed], [product]))
        bias = self._held(node.tensors["bias"])
        self.nodes.append(helper.make_node("Add", [product, bias], [node.output]))

    def _batch_norm(self, node: Node) -> None:
        channels = self._tensors[node.tensors["running_mean"]].size
        names = []
        for role, usual in (("weight", 1), ("bias", 0)):
            filled = np.full(channels, usual, np.float32)
            held = node.tensors.get(role)
            names.append(self._held(held) if held else self._constant(f"{node.output}.{role}", filled))
        statistics = [self._held(node.tensors[role]) for role in ("running_mean", "running_var")]
        self._emit("BatchNormalization", node, *names, *statistics, epsilon=node.attributes["eps"])

    def _overhang(self, node: Node) -> list[int]:
        """By how much the last windows of a pool with `ceil` go over the padded image, (height, width).

        ONNX's own ceil_mode keeps windows that lie in the padding alone, which PyTorch leaves out, and runtimes differ.
        """
        a = node.attributes
        sizes = zip(self._shapes[node.inputs[0]][-2:], self._shapes[node.output][-2:], strict=True)
        windows = zip(sizes, a["kernel"], a["stride"], a["padding"], strict=True)
        return [max(0, (out - 1) * s + k - size - 2 * p) for (size, out), k, s, p in windows]

    def _average(self, node: Node) -> None:
        """The mean counts padding where `count_padding` says so, but never what lies beyond it."""
        a, over = node.attributes, self._overhang(node)
        window = {"kernel_shape": a["kernel"], "strides": a["stride"]}
        if not a["count_padding"]:
            pads = [*a["padding"], *(p + o for p, o in zip(a["padding"], over, strict=True))]
            self._emit("AveragePool", node, **window, pads=pads)
        elif not any(over):
            self._emit("AveragePool", node, **window, pads=a["padding"] * 2, count_include_pad=1)
        else:
            padded = f"{node.output}.padded"
            amounts = self._constant(f"{node.output}.pads", np.array([0, 0, *a["padding"]] * 2, np.int64))
            self.nodes.append(helper.make_node("Pad", [node.inputs[0], amounts], [padded]))
            self.nodes.append(helper.make_node("AveragePool", [padded], [node.output], **window, pads=[0, 0, *over]))

    def _adaptive(self, node: Node) -> None:
        """Global or ordinary pooling where the windows are equal, and otherwise a product with the means' weights."""
        sizes = [int(n) for n in self._shapes[node.inputs[0]][-2:]]
        target = node.attributes["size"]
        if target == [1, 1]:
            self._emit("GlobalAveragePool", node)
        elif not any(size % out for size, out in zip(sizes, target, strict=True)):
            window = [size // out for size, out in zip(sizes, target, strict=True)]
            self._emit("AveragePool", node, kernel_shape=window, strides=window)
        else:
            rows, columns = (means(size, out) for size, out in zip(sizes, target, strict=True))
            across = f"{node.output}.columns"
            right = self._constant(f"{node.output}.means_of_columns", np.ascontiguousarray(columns.T))
            self.nodes.append(helper.make_node("MatMul", [node.inputs[0], right], [across]))
            left = self._constant(f"{node.output}.means_of_rows", rows)
            self.nodes.append(helper.make_node("MatMul", [left, across], [node.output]))

    def _emit(self, op: str, node: Node, *more: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, [*node.inputs, *more], [node.output], **attributes))

    def _held(self, name: str) -> str:
        return self._constant(name, self._tensors[name])

    def _constant(self, name: str, value: Any) -> str:
        name = f"{name}.tensor" if name in self._values else name
        self.initializers.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name


def means(size: int, out: int) -> np.ndarray:
    """The weights (out, size) with which adaptive pooling averages one axis."""
    weights = np.zeros((out, size), np.float32)
    for i in range(out):
        first, last = i * size // out, -(-(i + 1) * size // out)
        weights[i, first:last] = 1 / (last - first)
    return weights
