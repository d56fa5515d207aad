"""Other engines under one face, for comparison: each makes a function from batch to logits, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from io import BytesIO
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .errors import ModelError
from .graph import Node
from .model import Floats, SparseModel

Run = Callable[[Floats], Any]


@dataclass(frozen=True)
class Subject:
    """What is compared: a model, its graph, the samples it takes, a batch size and how many threads may serve it."""

    model: SparseModel
    graph: Sequence[Node]
    shape: tuple[int, ...]
    batch: int
    threads: int

    @cached_property
    def onnx(self) -> bytes:
        """The model as an ONNX file; its zeros are written out."""
        return to_onnx(self.graph, self.model.tensors(), (self.batch, *self.shape))


def installed() -> dict[str, Callable[[Subject], Run]]:
    """The engines that this environment has."""
    return {name: make for name, (package, make) in _RIVALS.items() if find_spec(package) and find_spec("onnx")}


def _onnxruntime(subject: Subject) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = subject.threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(subject.onnx, options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, {"input": batch})[0]


def _openvino(subject: Subject) -> Run:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": subject.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(BytesIO(subject.onnx)), "CPU", settings)
    request = compiled.create_infer_request()

    def run(batch: Floats) -> Any:
        request.infer({0: openvino.Tensor(batch, shared_memory=True)})
        return request.get_output_tensor(0).data.copy()

    return run


def _deepsparse(subject: Subject) -> Run:
    import deepsparse

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(subject.onnx)
        engine = deepsparse.compile_model(str(path), batch_size=subject.batch, num_cores=subject.threads)
    return lambda batch: engine.run([batch], val_inp=False)[0]


def _torch(subject: Subject) -> Run:
    import torch

    torch.set_num_threads(subject.threads)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in subject.model.tensors().items()}
    nodes = tuple(subject.graph)

    def run(batch: Floats) -> Any:
        values = {"input": torch.from_numpy(batch)}
        with torch.inference_mode():
            for node in nodes:
                inputs = [values[name] for name in node.inputs]
                values[node.output] = _torch_node(node, inputs, tensors)
        return values[nodes[-1].output].numpy()

    return run


def _torch_node(node: Node, inputs: list[Any], tensors: dict[str, Any]) -> Any:
    import torch
    from torch.nn import functional

    held = {role: tensors[name] for role, name in node.tensors.items()}
    a = node.attributes
    match node.op:
        case "linear":
            return functional.linear(inputs[0], held["weight"], held.get("bias"))
        case "conv2d":
            shape = [tuple(a[key]) for key in ("stride", "padding", "dilation")]
            return functional.conv2d(inputs[0], held["weight"], held.get("bias"), *shape, a["groups"])
        case "batch_norm":
            known = held["running_mean"], held["running_var"], held.get("weight"), held.get("bias")
            return functional.batch_norm(inputs[0], *known, eps=a["eps"])
        case "max_pool2d":
            return functional.max_pool2d(inputs[0], a["kernel"], a["stride"], a["padding"], ceil_mode=a["ceil"])
        case "avg_pool2d":
            return functional.avg_pool2d(
                inputs[0], a["kernel"], a["stride"], a["padding"], a["ceil"], a["count_padding"]
            )
        case "adaptive_avg_pool2d":
            return functional.adaptive_avg_pool2d(inputs[0], a["size"])
        case "flatten":
            return torch.flatten(inputs[0], a["start"])
        case "add":
            return inputs[0] + inputs[1]
        case "softmax":
            return torch.softmax(inputs[0], a["axis"])
        case "leaky_relu":
            return functional.leaky_relu(inputs[0], a["slope"])
        case _:
            return getattr(functional, node.op)(inputs[0])


_RIVALS: dict[str, tuple[str, Callable[[Subject], Run]]] = {
    "onnxruntime": ("onnxruntime", _onnxruntime),
    "openvino": ("openvino", _openvino),
    "pytorch": ("torch", _torch),
    "deepsparse": ("deepsparse", _deepsparse),
}
_ONNX_NAMES = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "hardswish": "HardSwish",
    "add": "Add",
}


def to_onnx(graph: Sequence[Node], tensors: dict[str, Floats], shape: tuple[int, ...]) -> bytes:
    """An ONNX file (opset 13, or 14 where a hard swish needs it) that computes the same for batches of one shape."""
    from onnx import TensorProto, helper, numpy_helper

    written: dict[str, Any] = {}

    def held(name: str, array: Any = None) -> str:
        written[name] = numpy_helper.from_array(np.ascontiguousarray(tensors[name] if array is None else array), name)
        return name

    nodes = []
    for node in graph:
        op, inputs, attributes = _onnx_node(node, tensors, held)
        nodes.append(helper.make_node(op, inputs, [node.output], **attributes))
    float_kind = TensorProto.FLOAT
    ends = (
        [helper.make_tensor_value_info("input", float_kind, shape)],
        [helper.make_tensor_value_info(graph[-1].output, float_kind, None)],
    )
    made = helper.make_graph(nodes, "fedsparsify", *ends, list(written.values()))
    opset = 14 if any(node.op == "hardswish" for node in graph) else 13
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def _onnx_node(node: Node, tensors: dict[str, Floats], held: Any) -> tuple[str, list[str], dict[str, Any]]:
    """Operator, inputs and attributes."""
    a, inputs = node.attributes, list(node.inputs)
    named = [held(node.tensors[role]) for role in ("weight", "bias") if role in node.tensors]
    match node.op:
        case "linear":
            return "Gemm", [*inputs, *named], {"transB": 1}
        case "conv2d":
            shape = {"kernel_shape": tensors[node.tensors["weight"]].shape[2:], "strides": a["stride"]}
            shape |= {"pads": [*a["padding"], *a["padding"]], "dilations": a["dilation"], "group": a["groups"]}
            return "Conv", [*inputs, *named], shape
        case "batch_norm":
            size = tensors[node.tensors["running_mean"]].size
            ones, zeros = np.ones(size, np.float32), np.zeros(size, np.float32)
            scale = named[0] if "weight" in node.tensors else held(f"{node.output}.one", ones)
            shift = held(node.tensors["bias"]) if "bias" in node.tensors else held(f"{node.output}.zero", zeros)
            known = [held(node.tensors[role]) for role in ("running_mean", "running_var")]
            return "BatchNormalization", [*inputs, scale, shift, *known], {"epsilon": a["eps"]}
        case "max_pool2d" | "avg_pool2d":
            shape = {"kernel_shape": a["kernel"], "strides": a["stride"], "pads": [*a["padding"], *a["padding"]]}
            shape |= {"ceil_mode": int(a["ceil"])}
            if node.op == "max_pool2d":
                return "MaxPool", inputs, shape
            return "AveragePool", inputs, shape | {"count_include_pad": int(a["count_padding"])}
        case "adaptive_avg_pool2d" if prod(a["size"]) == 1:
            return "GlobalAveragePool", inputs, {}
        case "flatten" if a["start"] == 1:
            return "Flatten", inputs, {"axis": 1}
        case "softmax":
            return "Softmax", inputs, {"axis": a["axis"]}
        case "leaky_relu":
            return "LeakyRelu", inputs, {"alpha": a["slope"]}
        case "relu6":
            bounds = [held(f"{node.output}.{v}", np.array(v, np.float32)) for v in (0, 6)]
            return "Clip", [*inputs, *bounds], {}
        case op if op in _ONNX_NAMES:
            return _ONNX_NAMES[op], inputs, {}
    raise ModelError(f"layer {node.output!r}: no ONNX operator for {node.op!r} is written here.")
