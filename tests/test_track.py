"""TensorBoard and MLflow hear of every round once, also of a run that was stopped."""

from __future__ import annotations

import os
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


def test_a_tracker_that_is_not_installed_is_named(elsewhere):
    (elsewhere / "tensorboard.py").write_text("raise ModuleNotFoundError('absent', name='tensorboard')")
    done = fedsparsify("run", *SMALL, "--out", "o", "--track", "tensorboard", PYTHONPATH=str(elsewhere))
    assert done.returncode == 2
    assert "pip install 'fedsparsify[track]'" in done.stderr
