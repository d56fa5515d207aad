"""infer and bench, as a person runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedsparsify.cli.bench import command as bench
from fedsparsify.cli.infer import command as infer
from fedsparsify.errors import DataError, FedSparsifyError, ModelError, RunError
from fedsparsify.networks import build, model_of
from fedsparsify.networks.tracing import trace
from fedsparsify.wire.artefact import save

FACTS: dict[str, Any] = {
    "network": "fc",
    "shape": [1, 4, 4],
    "classes": 3,
    "labels": ["cat", "dog", "owl"],
    "preprocessing": {"divisor": 255.0, "mean": [], "std": []},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    module = build("fc", (1, 4, 4), 3, seed=1)
    save(tmp_path / "model.fsz", model_of(module), FACTS | {"graph": [node.to_json() for node in trace(module)]})
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


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 cut off"])
def test_a_file_of_images_that_is_none_is_an_error(model: Path, content: bytes) -> None:
    path = model.parent / "x.npy"
    with pytest.raises(DataError, match=r"x\.npy cannot be read: No such file"):
        call(infer, model, path)
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not a file of numbers"):
        call(infer, model, path)


def test_logits_that_cannot_be_written_are_an_error(model: Path) -> None:
    np.save(model.parent / "x.npy", np.ones((4, 1, 4, 4), np.float32))
    with pytest.raises(RunError, match=r"missing/y\.npy cannot be written: No such file"):
        call(infer, model, model.parent / "x.npy", "--out", model.parent / "missing" / "y.npy")


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


def test_bench_times_a_training_step(model: Path) -> None:
    printed = call(bench, model, "--train", "--batch", 4, "--seconds", 0)
    assert "fc, batch 4, one core; back end: native; 19,075" in printed
    assert "pytorch, channels last" in printed
    assert "as fast" in printed
    other = build("fc", (1, 4, 4), 2, seed=1)
    save(model, model_of(other), FACTS | {"graph": []})
    with pytest.raises(FedSparsifyError, match="their tensors differ"):
        call(bench, model, "--train")
    save(model, model_of(other), {"shape": [1, 4, 4]})
    with pytest.raises(FedSparsifyError, match="does not name its network"):
        call(bench, model, "--train")


def test_bench_asks_for_a_shape_that_the_file_does_not_say(tmp_path: Path) -> None:
    module = build("fc", (1, 4, 4), 3, seed=1)
    save(tmp_path / "model.fsz", model_of(module), {"graph": [node.to_json() for node in trace(module)]})
    with pytest.raises(FedSparsifyError, match="give it as --shape 3x32x32"):
        call(bench, tmp_path / "model.fsz")
    with pytest.raises(FedSparsifyError, match="a shape reads like 3x32x32"):
        call(bench, tmp_path / "model.fsz", "--shape", "axb")


@pytest.mark.parametrize("command", [infer, bench])
def test_the_engines_memory_has_a_limit(model: Path, command: Any) -> None:
    np.save(model.parent / "x.npy", np.ones((4, 1, 4, 4), np.float32))
    words = [model.parent / "x.npy"] if command is infer else ["--seconds", 0.01, "--warmup", 0, "--batch", 4]
    with pytest.raises(ModelError, match=r"An engine may take 1.0 KB.*--max-memory"):
        call(command, model, *words, "--max-memory", "1KB")


def test_a_batch_that_does_not_fit_is_not_drawn(model: Path) -> None:
    with pytest.raises(ModelError, match="takes more memory than the engine may"):
        call(bench, model, "--batch", 10**9, "--max-memory", "1GB")


@pytest.mark.parametrize(
    "fact",
    [
        {"preprocessing": {"divisor": 0.0, "mean": [], "std": []}},
        {"preprocessing": {"divisor": "255", "mean": [], "std": []}},
        {"preprocessing": {"divisor": 255.0, "mean": [0.5, 0.5], "std": [1.0, 1.0]}},
        {"preprocessing": {"divisor": 255.0, "mean": [0.5], "std": [0.0]}},
        {"preprocessing": {"divisor": 255.0, "mean": [float("nan")], "std": [1.0]}},
        {"preprocessing": [1]},
    ],
)
def test_preprocessing_that_a_file_cannot_mean(model: Path, fact: dict[str, Any]) -> None:
    module = build("fc", (1, 4, 4), 3, seed=1)
    save(model, model_of(module), FACTS | fact | {"graph": [node.to_json() for node in trace(module)]})
    np.save(model.parent / "raw.npy", np.zeros((2, 1, 4, 4), np.uint8))
    with pytest.raises(ModelError, match="the file's preprocessing must be"):
        call(infer, model, model.parent / "raw.npy")


@pytest.mark.parametrize("shape", ["1x4", 5, None, [], [1, -4, 4], [1, 4.0, 4], [True, 4, 4], [10**30, 1, 1], {"a": 1}])
def test_shapes_that_a_file_cannot_mean(model: Path, shape: Any) -> None:
    module = build("fc", (1, 4, 4), 3, seed=1)
    save(model, model_of(module), FACTS | {"shape": shape} | {"graph": [node.to_json() for node in trace(module)]})
    with pytest.raises(ModelError, match="a shape reads like 3x32x32"):
        call(bench, model)


@pytest.mark.parametrize("labels", [5, "abc", {"0": "cat"}, ["cat"], None])
def test_labels_that_a_file_cannot_mean_are_numbers(model: Path, labels: Any) -> None:
    module = build("fc", (1, 4, 4), 3, seed=1)
    save(model, model_of(module), FACTS | {"labels": labels} | {"graph": [node.to_json() for node in trace(module)]})
    np.save(model.parent / "x.npy", np.ones((4, 1, 4, 4), np.float32))
    assert set(call(infer, model, model.parent / "x.npy").splitlines()[-4:]) <= {"0", "1", "2", "cat"}
