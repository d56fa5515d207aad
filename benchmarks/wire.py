"""What the wire format saves and what it costs, on models that were really trained.

    python benchmarks/wire.py bytes RUN_FOLDER...     whole runs, from their histories; files beside the paper's
    python benchmarks/wire.py speed MODEL.fsz...      megabytes of dense parameters a second, one core

`speed` needs `pip install zstandard`. Ways are timed in turn, round after round, and medians are printed.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsparsify import SparseModel, load
from fedsparsify.config import RunConfig, load_config
from fedsparsify.federation.ledger import read_history
from fedsparsify.scores import keep_top, magnitude
from fedsparsify.wire.codec import decode, encode

PAPER = Path(__file__).resolve().parents[1] / "results" / "paper_sizes.json"
TABLES = {"fashion-mnist": "fashion_mnist", "cifar10": "cifar10", "cifar100": "cifar100"}


def npy_bytes(model: SparseModel) -> int:
    """A dense model as Flower sends it by default: one `.npy` a tensor.

    `flwr.common.Array.from_numpy_ndarray` (flwr 1.41) writes each array by `numpy.save(..., allow_pickle=False)`.
    """
    total = 0
    for array in model.tensors().values():
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        total += file.tell()
    return total


def paper_size(config: RunConfig) -> int | None:
    """Bytes of the paper's compressed TFLite file for the same data and sparsity."""
    sparsity = getattr(config.method, "sparsity", None)
    table = TABLES.get(config.data)
    if table is None or sparsity is None:
        return None
    size = json.loads(PAPER.read_text())[f"{table}_noniid_10"]["size_mb"].get(f"{sparsity:.2f}")
    return None if size is None else round(size * 1e6)


def bytes_table(folders: list[Path]) -> list[str]:
    """One row a run. `honest` is every value that travelled, at four bytes; the last columns are the file's."""
    rows = [
        "| data | split | method | sparsity | wire | rounds | accuracy | MB sent | / honest × 4 | worst round "
        "| dense FedAvg in Flower / sent | model.fsz | paper's TFLite | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for folder in folders:
        config, history = load_config(folder / "config.toml"), read_history(folder / "history.jsonl")
        model = load(folder / "model.fsz")
        if any(entry.download_bytes is None or entry.upload_bytes is None for entry in history):
            rows.append(f"| {config.data} | {folder} did not count bytes |")
            continue
        sent = [entry.download_bytes + entry.upload_bytes for entry in history]
        honest = [4 * (entry.download_params + entry.upload_params) for entry in history]
        asked = sum(entry.clients + len(entry.refused) for entry in history)
        size, theirs = (folder / "model.fsz").stat().st_size, paper_size(config)
        rows.append(
            f"| {config.data} | {config.split} | {config.method_name} | {getattr(config.method, 'sparsity', 0):g} "
            f"| {config.wire_precision} | {len(history)} | {history[-1].accuracy:.4f} | {sum(sent) / 1e6:,.1f} "
            f"| {sum(sent) / sum(honest):.3f} | {max(s / h for s, h in zip(sent, honest, strict=True)):.3f} "
            f"| {asked * 2 * npy_bytes(model) / sum(sent):.2f}× | {size:,} "
            f"| {f'{theirs:,} | {theirs / size:.2f}×' if theirs else '– | –'} |"
        )
    return rows


def timed(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of CPU time of each way, interleaved so that a busy moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            way()
            times[name].append(time.process_time() - began)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def savez(model: SparseModel) -> bytes:
    """The model's tensors as numpy's compressed archive."""
    file = io.BytesIO()
    np.savez_compressed(file, **model.tensors())
    return file.getvalue()


def unsavez(data: bytes) -> list[np.ndarray]:
    """Every tensor of such an archive."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return [file[name] for name in file.files]


def speed_table(paths: list[Path], sparsity: float, rounds: int) -> list[str]:
    """One row a way to write a model, for each model; those denser than `sparsity` are pruned to it by magnitude."""
    import zstandard

    rows = ["| model | sparsity | way | bytes | write MB/s | read MB/s |", "|---|---|---|---|---|---|"]
    for path in paths:
        trained = load(path)
        model = trained.under(keep_top(magnitude(trained), sparsity, among=trained.mask))
        later = model.under(keep_top(magnitude(model), model.sparsity + 0.002, among=model.mask))
        layout, dense = model.layout, model.weights.tobytes()
        squeeze, unsqueeze = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
        write: dict[str, Callable[[], bytes]] = {
            "ours, whole": lambda m=model: encode(m),
            "ours, upload (mask known)": lambda m=model: encode(m, m.mask, layout_known=True),
            "ours, download (0.2 % died)": lambda m=later, k=model.mask: encode(m, k, layout_known=True),
            "ours, upload fp16": lambda m=model: encode(m, m.mask, "fp16", layout_known=True),
            "zstd 3, dense": lambda d=dense, z=squeeze: z.compress(d),
            "numpy.savez_compressed": lambda m=model: savez(m),
        }
        blobs = {name: way() for name, way in write.items()}
        read: dict[str, Callable[[], object]] = {
            name: (lambda b=blob, k=model.mask, y=layout: decode(b, k, y))
            for name, blob in blobs.items()
            if name.startswith("ours")
        }
        read["zstd 3, dense"] = lambda b=blobs["zstd 3, dense"], z=unsqueeze: np.frombuffer(z.decompress(b), np.float32)
        read["numpy.savez_compressed"] = lambda b=blobs["numpy.savez_compressed"]: unsavez(b)
        writing, reading = timed(write, rounds), timed(read, rounds)
        megabytes = 4 * layout.total / 1e6
        rows += [
            f"| {path.parent.name}, {layout.total:,} | {model.sparsity:.3f} | {name} | {len(blobs[name]):,} "
            f"| {megabytes / writing[name]:,.0f} | {megabytes / reading[name]:,.0f} |"
            for name in write
        ]
    return rows


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bytes", "speed"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--sparsity", type=float, default=0.9, help="of the models that `speed` writes")
    parser.add_argument("--rounds", type=int, default=15, help="repetitions of `speed`")
    given = parser.parse_args()
    rows = bytes_table(given.paths) if given.what == "bytes" else speed_table(given.paths, given.sparsity, given.rounds)
    print("\n".join(rows))


if __name__ == "__main__":
    main()
