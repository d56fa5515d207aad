"""infer and bench, as a person runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedsparsify.cli_inference import bench, infer
from fedsparsify.errors import DataError, FedSparsifyError
from fedsparsify.networks import build, model_of
from fedsparsify.tracing import graph_facts
from fedsparsify.wire.artefact import save

FACTS: dict[str, Any] = {
    "shape": [1, 4, 4],
    "classes": 3,
    "labels": ["cat", "dog", "owl"],
    "preprocessing": {"divisor": 255.0, "mean": [], "std": []},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    module = build("fc", (1, 4, 4), 3, seed=1)
    save(tmp_path / "model.fsz", model_of(module), FACTS | graph_facts(module))
    return tmp_path / "model.fsz"


def call(command: Any, *words: Any) -> str:
    result = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_raw_bytes_are_prepared_as_in_training(model: Path) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (5, 1, 4, 4), np.uint8)
    np.save(model.parent / "raw.npy", raw)
    np.save(model.parent / "ready.npy", raw.astype(np.float32) / np.float32(255))
    for name in ("raw", "ready"):
        call(infer, model, model.parent / f"{name}.npy", "--out", model.parent / f"{name}-logits.npy")
    logits = [np.load(model.parent / f"{name}-logits.npy") for name in ("raw", "ready")]
    assert logits[0].shape == (5, 3)
    assert np.array_equal(*logits)


def test_classes_are_printed_by_name(model: Path) -> None:
    np.save(model.parent / "x.npy", np.ones((4, 1, 4, 4), np.float32))
    lines = call(infer, model, model.parent / "x.npy").splitlines()
    assert sum(line in FACTS["labels"] for line in lines) == 4


@pytest.mark.parametrize("array", [np.array(["a"]), np.zeros(3)])
def test_what_is_not_images_is_an_error(model: Path, array: Any) -> None:
    np.save(model.parent / "x.npy", array)
    with pytest.raises(DataError, match="must hold one array of numbers"):
        call(infer, model, model.parent / "x.npy")


def test_bench_compares_what_is_installed(model: Path) -> None:
    printed = call(bench, model, "--batch", 2, "--seconds", 0.01, "--warmup", 0, "--threads", 1)
    assert "fedsparsify" in printed
    assert "onnxruntime" in printed
    assert "as fast" in printed


def test_bench_asks_for_a_shape_that_the_file_does_not_say(tmp_path: Path) -> None:
    module = build("fc", (1, 4, 4), 3, seed=1)
    save(tmp_path / "model.fsz", model_of(module), graph_facts(module))
    with pytest.raises(FedSparsifyError, match="give it as --shape 3x32x32"):
        call(bench, tmp_path / "model.fsz")
    with pytest.raises(FedSparsifyError, match="a shape reads like 3x32x32"):
        call(bench, tmp_path / "model.fsz", "--shape", "axb")
