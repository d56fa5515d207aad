"""Functions that ONNX models write out in several nodes: GELU by Erf, which has no node of its own before opset 20."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ROOT = 2**0.5
TOLERANCE = 1e-4  # of written-out constants


def written_out_gelus(nodes: Sequence[Any], constants: Mapping[str, Any]) -> dict[str, str]:
    """Outputs that are x · (1 + erf(x / √2)) / 2, in any order of the products, with the x of each."""
    maker = {node.output[0]: node for node in nodes if len(node.output) == 1}
    readers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def other(node: Any, op: str, value: float) -> str | None:
        """The input of a node beside a constant."""
        if node is None or node.op_type != op or len(node.input) != 2:
            return None
        for place in (0, 1) if op != "Div" else (1,):
            given = constants.get(node.input[place])
            if given is not None and np.size(given) == 1 and abs(float(np.ravel(given)[0]) - value) < TOLERANCE:
                return str(node.input[1 - place])
        return None

    def only(name: str) -> Any:
        found = readers.get(name, [])
        return found[0] if len(found) == 1 else None

    made = {}
    for node in nodes:
        if node.op_type != "Erf":
            continue
        scaled = maker.get(node.input[0])
        x = other(scaled, "Div", ROOT) or other(scaled, "Mul", 1 / ROOT)
        one = only(node.output[0])
        if x is None or other(one, "Add", 1.0) is None:
            continue
        product = only(one.output[0])
        if product is None or product.op_type != "Mul":
            continue
        factor = next((name for name in product.input if name != one.output[0]), "")
        if factor == x:
            last = only(product.output[0])
            if other(last, "Mul", 0.5) is not None or other(last, "Div", 2.0) is not None:
                made[last.output[0]] = x
        elif x in (other(maker.get(factor), "Mul", 0.5), other(maker.get(factor), "Div", 2.0)):
            made[product.output[0]] = x
        elif other(product, "Mul", 0.5) is not None:
            last = only(product.output[0])
            if last is not None and last.op_type == "Mul" and x in last.input:
                made[last.output[0]] = x
    return made
