"""The weights with which ONNX's Resize makes one side of an image longer or shorter."""

from __future__ import annotations

import numpy as np

from .base import Attributes, Floats


def weights_of(side: int, out: int, factor: float, attributes: Attributes) -> Floats | None:
    """What each of `out` pixels takes of those given, (out, side); None for other ways than the usual ones."""
    places, way = np.arange(out, dtype=np.float64), attributes.get("coordinate_transformation_mode", "half_pixel")
    if way == "asymmetric":
        at = places / factor
    elif way == "align_corners":
        at = places * (side - 1) / max(out - 1, 1)
    elif way == "half_pixel" or (way == "pytorch_half_pixel" and out > 1):
        at = (places + 0.5) / factor - 0.5
    elif way == "pytorch_half_pixel":
        at = np.zeros(1)
    else:
        return None
    if attributes.get("mode", "nearest") == "nearest":
        rounded = {
            "floor": np.floor(at),
            "ceil": np.ceil(at),
            "round_prefer_floor": np.ceil(at - 0.5),
            "round_prefer_ceil": np.floor(at + 0.5),
        }.get(attributes.get("nearest_mode", "round_prefer_floor"))
        if rounded is None:
            return None
        first, share = np.clip(rounded, 0, side - 1), np.zeros(out)
    elif attributes["mode"] == "linear":
        at = np.clip(at, 0, side - 1)
        first = np.minimum(np.floor(at), max(side - 2, 0))
        share = at - first
    else:
        return None
    made, lower = np.zeros((out, side)), first.astype(np.int64)
    rows = np.arange(out)
    made[rows, lower] = 1 - share
    made[rows, np.minimum(lower + 1, side - 1)] += share
    return made.astype(np.float32)
