"""Send the rounds of a run to TensorBoard, MLflow or Weights & Biases, beside the history that every run writes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from .config import RunConfig
from .errors import ConfigError
from .federation.ledger import Entry

SHOWN = (
    *("accuracy", "loss", "train_loss", "sparsity", "target_sparsity", "nonzero", "download_params", "upload_params"),
    *("download_bytes", "upload_bytes", "seconds", "purged_norm", "purge_bound", "paper_bound", "gradient_norm"),
    *("probe_loss", "epsilon"),
)


class Tracker(Protocol):
    """A receiver of finished rounds."""

    def log(self, entry: Entry) -> None:
        """Receive a round: finished now, or before the run was resumed."""


def _numbers(entry: Entry) -> dict[str, float]:
    table = asdict(entry)
    found = {name: float(table[name]) for name in SHOWN if table[name] is not None}
    found |= {name.replace(":", "."): float(value) for name, value in entry.metrics.items()}
    for metric, view in entry.client_views.items():
        found |= {f"clients/{metric.replace(':', '.')}/{key}": float(view[key]) for key in ("mean", "worst", "spread")}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _settings(config: RunConfig) -> dict[str, object]:
    """The resolved config without inner tables."""
    table = config.table()
    method = {f"method.{name}": value for name, value in table.pop("method").items()}
    return {**table, **method}


@contextmanager
def tracking(kind: str | None, config: RunConfig, folder: Path) -> Iterator[Tracker]:
    """A tracker for the run in `folder`; if `kind` is None, one that does nothing."""
    if kind == "tensorboard":
        with _tensorboard(folder) as tracker:
            yield tracker
    elif kind == "mlflow":
        with _mlflow(config, folder) as tracker:
            yield tracker
    elif kind == "wandb":
        with _wandb(config, folder) as tracker:
            yield tracker
    else:
        yield _NoTracker()


class _NoTracker:
    def log(self, entry: Entry) -> None:
        """Nothing."""


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Tracker]:
    """Event files in OUT/tensorboard. A resumed run logs all its rounds again, in place of the earlier events."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=0)

    class Board:
        def log(self, entry: Entry) -> None:
            for name, value in _numbers(entry).items():
                writer.add_scalar(name, value, entry.round)

    try:
        yield Board()
    finally:
        writer.close()


@contextmanager
def _mlflow(config: RunConfig, folder: Path) -> Iterator[Tracker]:
    """A run of MLflow at MLFLOW_TRACKING_URI, or by default in mlflow.db.

    OUT/mlflow-run holds its id, so that a resumed run continues it.
    """
    import mlflow

    id_file = folder / "mlflow-run"
    known = id_file.read_text().strip() if id_file.exists() else None
    try:
        mlflow.set_experiment("fedsparsify")
        started = mlflow.start_run(run_id=known, run_name=folder.name)
    except mlflow.exceptions.MlflowException as error:
        raise ConfigError(f"MLflow takes no run: {str(error).splitlines()[0]}") from error
    with started as active:
        client, run_id = mlflow.MlflowClient(), active.info.run_id
        logged = max((point.step for point in client.get_metric_history(run_id, "sparsity")), default=-1)
        mlflow.log_params(_settings(config))

        class Experiment:
            def log(self, entry: Entry) -> None:
                if not id_file.exists() and folder.exists():
                    id_file.write_text(run_id + "\n")
                if entry.round > logged:
                    mlflow.log_metrics(_numbers(entry), step=entry.round)

        yield Experiment()


@contextmanager
def _wandb(config: RunConfig, folder: Path) -> Iterator[Tracker]:
    """A run of Weights & Biases, in the project WANDB_PROJECT or `fedsparsify`; with WANDB_MODE=offline, on disk alone.

    OUT/wandb has its files, if WANDB_DIR names no other place. OUT/wandb-run holds its id, so that a resumed run
    continues it. Offline, wandb cannot know what was logged before: a resumed run writes all its rounds again.
    """
    import wandb

    id_file = folder / "wandb-run"
    known = id_file.read_text().strip() if id_file.exists() else None
    if not os.environ.get("WANDB_DIR"):
        folder.mkdir(parents=True, exist_ok=True)  # wandb would take a temporary folder in place of an absent one
    try:
        started = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedsparsify",
            name=folder.name,
            id=known,
            resume="allow" if known else None,
            dir=os.environ.get("WANDB_DIR") or str(folder),
            config=_settings(config),
            settings=wandb.Settings(console="off"),  # it would read what is printed, bars included
        )
    except wandb.errors.Error as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"Weights & Biases takes no run: {said} Or keep it on disk: WANDB_MODE=offline.") from error
    with started as active:
        first = active.step  # the next step of a run that is continued

        class Dashboard:
            def log(self, entry: Entry) -> None:
                if not id_file.exists():
                    id_file.write_text(active.id + "\n")
                if entry.round >= first:
                    active.log(_numbers(entry), step=entry.round)

        yield Dashboard()
