"""TensorBoard, MLflow and Weights & Biases hear of every round once, also of a run that was stopped."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import pytest

SMALL = ["--rounds", "3", "--epochs", "1", "--clients", "3"]


def fedsparsify(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "fedsparsify", *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
    )


def test_tensorboard(elsewhere):
    pytest.importorskip("tensorboard")
    assert fedsparsify("run", *SMALL, "--out", "o", "--track", "tensorboard", "--diagnose").returncode == 0
    done = fedsparsify("run", "--out", "o", "--resume", "--track", "tensorboard")
    assert done.returncode == 0, done.stderr
    code = (
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator('o/tensorboard').Reload()\n"
        "print([event.step for event in events.Scalars('accuracy')], 'gradient_norm' in events.Tags()['scalars'])"
    )
    read = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert read.stdout.strip() == "[1, 2, 3] True", read.stderr


@pytest.mark.slow
def test_mlflow(elsewhere):
    pytest.importorskip("mlflow")
    at = {"MLFLOW_TRACKING_URI": f"sqlite:///{elsewhere}/mlflow.db"}
    first = fedsparsify("run", *SMALL, "--out", "o", "--track", "mlflow", **at)
    assert first.returncode == 0, first.stderr
    assert fedsparsify("run", "--out", "o", "--resume", "--track", "mlflow", **at).returncode == 0
    code = (
        "import mlflow\n"
        "client = mlflow.MlflowClient()\n"
        "run = client.get_run(open('o/mlflow-run').read().strip())\n"
        "steps = [point.step for point in client.get_metric_history(run.info.run_id, 'accuracy')]\n"
        "print(steps, run.data.params['method.name'], run.info.status)"
    )
    read = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | at)
    assert read.stdout.strip() == "[1, 2, 3] fedsparsify-global FINISHED", read.stderr
    bad = fedsparsify("run", *SMALL, "--out", "p", "--track", "mlflow", MLFLOW_TRACKING_URI="nowhere://x")
    assert bad.returncode == 2
    assert "MLflow" in bad.stderr
    assert "Traceback" not in bad.stderr


def logged_offline(folder):
    """The config of a run of wandb, and its history: records of protobuf in a log of LevelDB's form."""
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("wandb/offline-*/run-*.wandb")
    data, at, part, config, steps = path.read_bytes(), 7, b"", {}, []
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        part, at = part + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record, part = records.Record.FromString(part), b""
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            if record.HasField("history"):
                items = record.history.item
                steps.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return config, steps


@pytest.mark.slow
def test_wandb_offline(elsewhere):
    pytest.importorskip("wandb")
    at = {"WANDB_MODE": "offline"}
    done = fedsparsify("run", *SMALL, "--out", "o", "--track", "wandb", "--evaluate", "both", "--json", **at)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    config, steps = logged_offline(elsewhere / "o")
    assert config["method.name"] == "fedsparsify-global" and config["evaluate"] == "both"
    assert [(step["_step"], step["accuracy"]) for step in steps] == [(one["round"], one["accuracy"]) for one in told]
    assert steps[-1]["clients/accuracy/worst"] == told[-1]["client_views"]["accuracy"]["worst"]
    name = (elsewhere / "o/wandb-run").read_text()
    (elsewhere / "o/wandb").rename(elsewhere / "before")
    assert fedsparsify("run", "--out", "o", "--resume", "--track", "wandb", **at).returncode == 0
    assert (elsewhere / "o/wandb-run").read_text() == name
    assert next((elsewhere / "o/wandb").glob("offline-*")).name.endswith(f"-{name.strip()}")
    assert [step["_step"] for step in logged_offline(elsewhere / "o")[1]] == [1, 2, 3]


@pytest.mark.slow
def test_wandb_without_a_key_is_refused(elsewhere):
    pytest.importorskip("wandb")
    at = {"WANDB_MODE": "online", "WANDB_API_KEY": "", "HOME": str(elsewhere)}
    done = fedsparsify("run", *SMALL, "--out", "o", "--track", "wandb", **at)
    assert done.returncode == 2 and "WANDB_MODE=offline" in done.stderr and "Traceback" not in done.stderr


def test_a_tracker_that_is_not_installed_is_named(elsewhere):
    (elsewhere / "tensorboard.py").write_text("raise ModuleNotFoundError('absent', name='tensorboard')")
    done = fedsparsify("run", *SMALL, "--out", "o", "--track", "tensorboard", PYTHONPATH=str(elsewhere))
    assert done.returncode == 2
    assert "pip install 'fedsparsify[track]'" in done.stderr
