"""Run folders as runs leave them, written without training: small, and with figures that tests can know."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedsparsify.config import RunConfig, to_toml
from fedsparsify.federation.client_views import ClientEvaluation, client_views
from fedsparsify.federation.ledger import Entry, line
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.wire.artefact import save

LAYOUT = Layout((TensorSpec("1.weight", (20, 10)), TensorSpec("1.bias", (20,)), TensorSpec("3.weight", (30, 6))))
TOTAL = LAYOUT.total  # 400


def write_run(folder: Path, played: int | None = None, wire: bool = True, **settings) -> Path:
    """A run of `settings` of which `played` rounds (all, if not said) are on disk."""
    config = RunConfig(**{"data": "digits", "rounds": 6, "clients": 4, **settings})
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(config))
    before = LAYOUT.total
    lines = []
    for t in range(1, (config.rounds if played is None else played) + 1):
        sparsity = config.method.schedule(t)
        after = TOTAL - int(sparsity * TOTAL)
        sent = config.participants * before
        entry = Entry(
            round=t,
            accuracy=0.5 + 0.4 * t / config.rounds - 0.2 * sparsity + 0.01 * (config.seed % 10),
            loss=1.0 / t,
            target_sparsity=sparsity,
            sparsity=1 - after / TOTAL,
            nonzero=after,
            clients=config.participants,
            download_params=sent,
            upload_params=sent,
            paper_params=sent + config.participants * after,
            download_bytes=4 * sent if wire else None,
            upload_bytes=4 * sent if wire else None,
            train_loss=1.0 / t,
            seconds=0.5,
            **({"purged_norm": 0.1 * t, "purge_bound": 0.3, "paper_bound": 0.05} if config.diagnose else {}),
            **({"gradient_norm": 1.0 / t, "probe_loss": 2.0 / t} if config.diagnose else {}),
            client_views=_views(t) if config.evaluate != "server" else {},
        )
        before = after
        lines.append(line(entry))
    (folder / "history.jsonl").write_text("".join(lines))
    (folder / "partition.json").write_text(json.dumps([[3, 0], [0, 4], [2, 2], [5, 0]]))
    if played is None:
        rng = np.random.default_rng(0)
        mask = np.zeros(TOTAL, np.bool_)
        mask[rng.permutation(TOTAL)[:before]] = True
        save(folder / "model.fsz", SparseModel.masked(LAYOUT, rng.standard_normal(TOTAL).astype(np.float32), mask))
    return folder


def _views(t: int) -> dict[str, dict[str, object]]:
    """What four clients measured in round t."""
    evaluations = {
        client: ClientEvaluation(10 + client, {"accuracy": 0.5 + 0.05 * t - 0.1 * client, "loss": 1 + client / t})
        for client in range(4)
    }
    return client_views(evaluations)


def write_grid(folder: Path) -> Path:
    """Two splits, some methods at some sparsities, two seeds; F, n and the vote; one run that diagnosed itself."""
    for split in ("iid", "classes:2"):
        for seed in (1990, 1991):
            at = {"split": split, "seed": seed}
            write_run(folder / f"fedavg-{split}-{seed}", method="fedavg", **at)
            for method in ("fedsparsify-global", "fedsparsify-local", "random", "oneshot"):
                for sparsity in (0.8, 0.9):
                    table = {"name": method, "sparsity": sparsity}
                    write_run(folder / f"{method}-{split}-{seed}-{sparsity}", method=table, **at)
        local = {"name": "fedsparsify-local", "sparsity": 0.9, "aggregate": "average"}
        write_run(folder / f"average-{split}", method=local, split=split)
    for name, value in (("every", 2), ("every", 3), ("exponent", 1.0), ("exponent", 6.0)):
        table = {"name": "fedsparsify-global", "sparsity": 0.9, name: value}
        diagnose = {"diagnose": value == 2}
        write_run(folder / f"{name}-{value}", method=table, split="classes:2", **diagnose)
    return folder
