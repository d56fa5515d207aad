"""Other inference engines behind one interface, for comparison. Each makes a function from batch to logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .graph import Node
from .model import Floats, SparseModel
from .ops import by_torch
from .wire.artefact import load_network

Run = Callable[[Floats], Any]
OLD_OPSET, OLD_IR = 13, 8  # the newest that DeepSparse reads


@dataclass(frozen=True)
class Subject:
    """A model file to compare engines on, the same model as an ONNX file, a batch size and a number of threads."""

    file: Path
    onnx: Path
    batch: int
    threads: int

    @property
    def tflite(self) -> Path:
        """The same model for XNNPACK, where somebody has converted it: beside the ONNX file."""
        return self.onnx.with_suffix(".tflite")

    def can_run(self, engine: str) -> bool:
        """Whether the file is there that an engine reads."""
        return {"pytorch": self.file, "xnnpack": self.tflite}.get(engine, self.onnx).exists()


def installed() -> dict[str, Callable[[Subject], Run]]:
    """The engines that are installed here."""
    return {name: make for name, (package, make) in _ENGINES.items() if find_spec(package)}


def write_fixed_onnx(path: Path, model: SparseModel, graph: Sequence[Node], shape: Sequence[int], batch: int) -> None:
    """Write an ONNX file for one batch size: engines optimise best for fixed shapes."""
    import onnx

    from .export.onnx import write_onnx

    write_onnx(path, model, {"shape": list(shape)}, graph)
    made = onnx.load(path)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    made.graph.output[0].type.tensor_type.ClearField("shape")
    if all(onnx.defs.has(node.op_type, OLD_OPSET, "") for node in made.graph.node):
        made.opset_import[0].version, made.ir_version = OLD_OPSET, OLD_IR
    path.write_bytes(made.SerializeToString())


def _onnxruntime(subject: Subject) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = subject.threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(subject.onnx), options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, {"input": batch})[0]


def _openvino(subject: Subject) -> Run:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": subject.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(str(subject.onnx), "CPU", settings)
    request = compiled.create_infer_request()

    def run(batch: Floats) -> Any:
        request.infer({0: openvino.Tensor(batch, shared_memory=True)})
        return request.get_output_tensor(0).data.copy()

    return run


def _deepsparse(subject: Subject) -> Run:
    import deepsparse

    engine = deepsparse.compile_model(str(subject.onnx), batch_size=subject.batch, num_cores=subject.threads)
    return lambda batch: engine.run([batch], val_inp=False)[0]


def _torch(subject: Subject) -> Run:
    import torch
    from torch.nn import functional

    torch.set_num_threads(subject.threads)
    nodes, weights = load_network(subject.file)
    tensors = {name: torch.from_numpy(survivors.dense()) for name, survivors in weights.items()}

    def run(batch: Floats) -> Any:
        with torch.inference_mode():
            return by_torch(functional, nodes, tensors, torch.from_numpy(batch)).numpy()

    return run


def _xnnpack(subject: Subject) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(subject.tflite), num_threads=subject.threads)
    interpreter.allocate_tensors()
    place, result = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def run(batch: Floats) -> Any:
        interpreter.set_tensor(place, batch)
        interpreter.invoke()
        return interpreter.get_tensor(result)

    return run


_ENGINES: dict[str, tuple[str, Callable[[Subject], Run]]] = {
    "onnxruntime": ("onnxruntime", _onnxruntime),
    "openvino": ("openvino", _openvino),
    "pytorch": ("torch", _torch),
    "deepsparse": ("deepsparse", _deepsparse),
    "xnnpack": ("ai_edge_litert", _xnnpack),
}
