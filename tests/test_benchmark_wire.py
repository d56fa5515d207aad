"""The benchmark reads what runs really leave, and a real run stays below its bar."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from fedsparsify import RunConfig, run
from fedsparsify.wire.artefact import load

PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "wire.py"
spec = importlib.util.spec_from_file_location("benchmark_wire", PATH)
assert spec and spec.loader
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)


@pytest.mark.parametrize("method", ["fedsparsify-global", "fedsparsify-local"])
def test_every_round_takes_less_than_four_bytes_a_value(method, tmp_path):
    result = run(RunConfig(rounds=8, epochs=1, sparsity=0.95, method=method), tmp_path)
    bar = 0.97 if method == "fedsparsify-global" else 1.1  # a client's own mask is news that no parameter count has
    for entry in result.history:
        assert entry.download_bytes + entry.upload_bytes <= bar * 4 * (entry.download_params + entry.upload_params)
    row = benchmark.bytes_table([tmp_path])[-1]
    assert method in row and "| fp32 | 8 |" in row


def test_speed_table(tmp_path):
    pytest.importorskip("zstandard")
    run(RunConfig(rounds=2, epochs=1, clients=2), tmp_path)
    rows = benchmark.speed_table([tmp_path / "model.fsz"], 0.95, 1)
    assert len(rows) == 2 + 6 and "0.950" in rows[-1]


def test_flower_adds_a_header_to_every_tensor(tmp_path):
    run(RunConfig(rounds=1, epochs=1, clients=2), tmp_path)
    model = load(tmp_path / "model.fsz")
    assert benchmark.npy_bytes(model) == 4 * model.layout.total + 6 * 128
