"""As a model file with int8 weights, which `Engine`, `infer` and `bench` read like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import DataError, ModelError
from ..graph import Node
from ..inference.int8.calibration import LayerError, calibrate
from ..model import Floats, SparseModel
from ..wire.artefact import write
from ..wire.codec import decode, encode

SAMPLES = 256  # that are enough to calibrate


def write_int8(
    path: Path, model: SparseModel, facts: Mapping[str, object], graph: Sequence[Node], samples: Floats
) -> list[LayerError]:
    """Write the model with int8 weights and calibrated ranges; returns the measured error of each layer.

    Weights are rounded first, and ranges are those of the rounded network on the samples.
    """
    if "int8" in facts:
        raise ModelError("the file holds an int8 model already.")
    if not len(samples) or not np.isfinite(samples).all():
        raise DataError("calibration takes one sample at least, of finite numbers.")
    shape = facts.get("shape")
    if isinstance(shape, list) and list(samples.shape[1:]) != shape:
        raise DataError(f"the model takes samples of {shape}. Received: {list(samples.shape[1:])}.")
    rounded = decode(encode(model, precision="int8-channel"))
    found = calibrate(graph, rounded.host_tensors(), np.ascontiguousarray(samples[:SAMPLES], np.float32))
    write(path, model, {**facts, "int8": found.fact}, {}, "int8-channel")
    return found.layers
