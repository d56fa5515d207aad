"""The tables of docs/performance-inference.md from what benchmarks/inference.py wrote: `inference_table.py FILE…`.

Of a cell that is there more than once, the newest counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAMES = {
    "fedsparsify": "fedsparsify",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "xnnpack": "XNNPACK",
    "pytorch": "PyTorch",
    "deepsparse": "DeepSparse",
}
DENSE = ("onnxruntime", "openvino", "pytorch", "xnnpack")
# Network and batch → how many times as fast as the best dense engine at 0.90, 0.95 and 0.99: what we set out to reach.
GOALS = {
    ("cnn", 64): (2.6, 3.6, 8.0),
    ("vgg16", 64): (4.0, 5.0, 8.5),
    ("cnn", 1): (3.0, 4.3, 10.0),
    ("vgg16", 1): (3.0, 4.3, 10.0),
}


def cells(paths: Iterable[str]) -> list[dict[str, Any]]:
    """All cells, the newest of each."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in paths:
        for line in Path(path).read_text().splitlines():
            cell = json.loads(line)
            found[cell["model"], cell["batch"], cell["threads"]] = cell
    return sorted(found.values(), key=lambda cell: (cell["model"], -cell["batch"], cell["threads"]))


def goal(cell: dict[str, Any]) -> float | None:
    """The ratio that a cell should reach, if any was set."""
    network = next((name for name, _ in GOALS if name in cell["model"]), "")
    sparsity, goals = cell["model"].rpartition("-")[2], GOALS.get((network, cell["batch"]))
    names = {"0.9": 0, "0.90": 0, "0.95": 1, "0.99": 2}
    return None if goals is None or sparsity not in names else goals[names[sparsity]]


def rows(table: list[list[str]]) -> None:
    """A table in Markdown; the first row is its head."""
    print("| " + " | ".join(table[0]) + " |\n|" + "---|" * len(table[0]))
    for row in table[1:]:
        print("| " + " | ".join(row) + " |")


def main() -> None:
    """Times and ratios, then the fraction of the peak, then what is left of each layer."""
    found = cells(sys.argv[1:])
    engines = [name for name in NAMES if any(name in cell["ms"] for cell in found)]
    times = [
        [
            "model",
            "batch",
            "threads",
            *(NAMES[name] for name in engines),
            "over the best dense",
            "goal",
            "over DeepSparse",
        ]
    ]
    shares = [["model", "batch", "threads", *(NAMES[name] for name in engines)]]
    left: dict[str, list[str]] = {}
    for cell in found:
        ms, ours, aim = cell["ms"], cell["ms"]["fedsparsify"], goal(cell)
        ratio = min(ms[name] for name in DENSE if name in ms) / ours
        sparse = f"{ms['deepsparse'] / ours:.2f}×" if "deepsparse" in ms else "–"
        start = [cell["model"], str(cell["batch"]), str(cell["threads"])]
        values = [f"{ms[name]:.4g}" if name in ms else "–" for name in engines]
        reached = "" if aim is None or ratio < aim else " ✓"
        times.append([*start, *values, f"{ratio:.2f}×{reached}", f"{aim}×" if aim else "–", sparse])
        work = 2 * cell["macs_left"] * cell["batch"] / 1e6 / cell["peak"] / cell["threads"]
        shares.append([*start, *(f"{work / ms[name]:.0%}" if name in ms else "–" for name in engines)])
        kept = " · ".join(f"{now / whole:.2g}" for _, whole, now in cell["layers"])
        left[cell["model"]] = [cell["model"], f"1/{cell['macs'] / max(cell['macs_left'], 1):.1f}", kept]
    rows(times)
    print()
    rows(shares)
    print()
    rows([["model", "operations left", "kept per layer"], *left.values()])
    quiet = [min(cell["quiet"].values()) for cell in found if "quiet" in cell]
    print(f"\nquiet turns: at least {min(quiet)} in a cell" if quiet else "")


if __name__ == "__main__":
    main()
