"""A model as a TFLite file for XNNPACK, made once and held to PyTorch's logits.

    python benchmarks/xnnpack.py MODEL SHAPE BATCH PATH       in an environment with litert-torch

Exits with what went wrong, without a file, where the converter refuses the network, where XNNPACK takes no part of it,
or where the logits differ from PyTorch's by more than 1e-4 of the largest.

XNNPACK is a dense engine here. Its sparse kernels are for 1 x 1 convolutions between a 3 x 3 convolution of stride 2
and a mean, with weights behind DENSIFY operations, and it keeps them off where an x86 processor has AVX
(`xnn_is_chw_compatible_config`): a mobilenet_v2 written so gives the same bits at the same speed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ROUNDING = 1e-4  # of the largest logit


def write_once(python: str, model: Path, shape: str, batch: int, path: Path) -> None:
    """Convert a model by another Python, where the file is not there yet; what came of it is printed."""
    if path.exists() and path.stat().st_mtime > model.stat().st_mtime:
        return
    command = [python, __file__, str(model), shape, str(batch), str(path)]
    folders = [str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    made = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = (made.stderr if made.returncode else made.stdout).strip().splitlines() or [f"status {made.returncode}"]
    print(f"xnnpack: {model.stem}, batch {batch}: {lines[-1]}", file=sys.stderr, flush=True)


def convert(model: Path, shape: tuple[int, ...], batch: int, path: Path) -> None:
    """Write the file and check it; it gets its name last."""
    import litert_torch  # noqa: F401 - a missing package is named at once

    from fedsparsify.engines import Subject, installed
    from fedsparsify.export.tflite import write_tflite
    from fedsparsify.wire.artefact import load_network

    graph, weights = load_network(model)
    subject = Subject(model, path.with_suffix(".new.onnx"), batch, 1)
    write_tflite(subject.tflite, graph, {name: weight.dense() for name, weight in weights.items()}, shape, batch)
    samples = np.sin(np.arange(batch * np.prod(shape), dtype=np.float32) * 0.7).reshape(batch, *shape)
    expected, received = (installed()[name](subject)(samples) for name in ("pytorch", "xnnpack"))
    gap = float(abs(received - expected).max() / abs(expected).max())
    parts = delegated(subject.tflite)
    if not gap <= ROUNDING or not parts:
        subject.tflite.unlink()
        raise SystemExit(f"logits differ by {gap:.2g} of the largest" if parts else "XNNPACK takes no part of it")
    subject.tflite.replace(path)
    print(f"logits differ by {gap:.2g} of the largest; XNNPACK runs it in {parts} parts")


def delegated(path: Path) -> int:
    """Parts of a network that XNNPACK runs; what lies between two of them runs in TFLite's own kernels."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=1)
    interpreter.allocate_tensors()
    return sum(each["op_name"] == "DELEGATE" for each in interpreter._get_ops_details())


if __name__ == "__main__":
    convert(Path(sys.argv[1]), tuple(map(int, sys.argv[2].split("x"))), int(sys.argv[3]), Path(sys.argv[4]))
