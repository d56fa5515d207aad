"""Runs that end when their metric no longer improves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedsparsify import RunConfig, run
from fedsparsify.errors import ConfigError
from fedsparsify.federation.early_stopping import stopping_reason
from fedsparsify.federation.ledger import Entry, read_history
from fedsparsify.federation.sweep import expand, sweep
from fedsparsify.notices import Notice
from fedsparsify.report import load_runs

SETTINGS = dict.fromkeys(("loss", "train_loss", "sparsity", "nonzero", "clients"), 0)
SETTINGS |= dict.fromkeys(("download_params", "upload_params", "paper_params", "seconds"), 0)


def history(values, target=0.0, metric="accuracy"):
    targets = target if isinstance(target, list) else [target] * len(values)
    return [
        Entry(**{"accuracy": 0.0, **SETTINGS, "round": t, "target_sparsity": s, metric: value})
        for t, (value, s) in enumerate(zip(values, targets, strict=True), 1)
    ]


def stops_at(config, entries):
    return next((entry.round for entry in entries if stopping_reason(config, entries[: entry.round])), None)


@pytest.mark.parametrize(
    ("values", "settings", "stop"),
    [
        ([0.1, 0.2, 0.2, 0.2, 0.9], {}, 4),
        ([0.1, 0.2, 0.1, 0.3, 0.1, 0.1], {}, 6),
        ([0.1, 0.2, 0.3, 0.4, 0.5], {}, None),
        ([0.1, 0.2, 0.21, 0.22, 0.5], {"min_delta": 0.05}, 4),
        ([0.1, 0.2, math.nan, math.nan], {}, 4),
        ([math.nan, math.nan], {}, 2),
        ([math.nan, 0.1, math.nan, 0.2], {}, None),
        ([3.0, 2.0, 1.0, 1.5, 1.2], {"stop_on": "loss"}, 5),
        ([3.0, 2.0, 2.5, 2.5], {"stop_on": "train_loss", "min_delta": 0.1}, 4),
    ],
)
def test_literal_histories(values, settings, stop):
    config = RunConfig(rounds=10, method="fedavg", patience=2, **settings)
    assert stops_at(config, history(values, metric=config.stop_on)) == stop


def test_only_rounds_at_the_final_sparsity_count():
    config = RunConfig(rounds=9, method={"name": "oneshot-ft", "sparsity": 0.9, "tune": 4}, patience=2)
    at = config.method.schedule
    first = next(t for t in range(1, 10) if at(t) == 0.9)
    values = [0.9] * (first - 1) + [0.5, 0.6, 0.6, 0.6]
    entries = history(values, [at(t) for t in range(1, len(values) + 1)])
    assert stops_at(config, entries) == first + 3
    assert stopping_reason(config, entries) == "accuracy has not improved for 2 rounds (best: 0.6000 in round 6)"
    assert first == 5


def test_without_patience_every_round_is_run():
    assert stopping_reason(RunConfig(rounds=10, method="fedavg"), history([0.5] * 10)) == ""


STILL = {"rounds": 12, "epochs": 1, "clients": 2, "method": "fedavg", "lr": 1e-9, "patience": 3, "checkpoint_every": 5}


def test_a_run_stops_says_why_and_resumes_to_the_same_bytes(tmp_path):
    config = RunConfig(**STILL)
    whole = run(config, tmp_path / "whole")
    assert [entry.round for entry in whole.history] == [1, 2, 3, 4]
    assert whole.stopped.startswith("accuracy has not improved for 3 rounds (best: 0.")
    assert [bool(entry.stopped) for entry in whole.history] == [False, False, False, True]
    assert whole.facts["rounds"] == 4

    def stop(entry):
        if entry.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "halves", on_round=stop)
    assert run(config, tmp_path / "halves", resume=True).stopped == whole.stopped
    for name in ("whole", "halves"):  # a run that has stopped is not continued
        (tmp_path / name / "model.fsz").rename(tmp_path / name / "before.fsz")
        assert len(run(config, tmp_path / name, resume=True).history) == 4
    files = [tmp_path / name / file for name in ("whole", "halves") for file in ("before.fsz", "model.fsz")]
    assert len({file.read_bytes() for file in files}) == 1
    (seen,), notes = load_runs([tmp_path / "whole"])
    assert seen.complete and seen.stopped == whole.stopped and notes == []


def test_runs_of_a_sweep_stop_each_at_its_own_round(tmp_path):
    runs = expand({**RunConfig(**STILL).table(), "sweep": {"patience": [2, 4], "seed": [1, 2]}})
    sweep(runs, tmp_path, max_models=8)
    assert {planned.config.patience + 1 for planned in runs} == {3, 5}
    for planned in runs:
        last = read_history(tmp_path / planned.name / "history.jsonl")[-1]
        assert last.round == planned.config.patience + 1 and last.stopped
        assert (tmp_path / planned.name / "model.fsz").exists()


def test_patience_that_cannot_act_is_named():
    config = RunConfig(rounds=3, epochs=1, clients=2, sparsity=0.9, patience=1)
    with pytest.warns(Notice, match="reached in round 3 of 3"):
        assert not run(config).stopped
    with pytest.warns(Notice, match="patience 5 has no effect"):
        run(replace(config, method="fedavg", patience=5))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"patience": 0}, "patience must be at least 1"),
        ({"patience": 2.5}, "patience must be an integer"),
        ({"stop_on": "acuracy"}, "stop_on must be one of accuracy, loss, train_loss"),
        ({"min_delta": -1.0}, "min_delta must be 0 or more"),
    ],
)
def test_refused_settings(settings, said):
    with pytest.raises(ConfigError, match=said):
        RunConfig(**settings)
