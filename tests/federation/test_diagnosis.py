"""Theorem 1's terms: what a purge threw away, its bounds, and the gradient on a fixed probe."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from conftest import small_model

from fedsparsify import RunConfig, run
from fedsparsify.data import load_dataset
from fedsparsify.federation.diagnosis import MeanOfUpdates, Probed
from fedsparsify.federation.simulated import Simulated
from fedsparsify.methods import Update

KEYS = {"purged_norm", "purge_bound", "paper_bound", "gradient_norm", "probe_loss"}


def test_literal_values():
    before = small_model([1, 1, 1, 1, 0], [1, 1, 1, 1, 0])
    watch = MeanOfUpdates(
        [Update(small_model([6, 0, 2, 2, 0], before.mask), 1), Update(small_model([6, 8, 4, 0, 0], before.mask), 1)]
    )
    assert len(list(watch)) == 2  # on their way to the merge
    merged = small_model([6, 4, 0, 0, 0], [1, 1, 0, 0, 0])  # of the mean [6, 4, 3, 1, 0]
    found = watch.diagnosis(3, Probed(0.5, 2.0), before, merged, step=0.4)
    assert found.purged_norm == pytest.approx(math.sqrt(10))
    assert found.purge_bound == pytest.approx(math.sqrt(62) * math.sqrt(2 / 4))
    assert found.paper_bound == pytest.approx(math.sqrt(62) * 0.4)
    assert (found.gradient_norm, found.probe_loss) == (2.0, 0.5)
    assert watch.diagnosis(0, Probed(0.5, 2.0), before, merged, step=0.4).purged_norm is None


@pytest.mark.parametrize("method", ["fedsparsify-global", "fedsparsify-local", "fedavg", "snip"])
def test_a_run_that_diagnoses_itself_trains_the_same(method, tmp_path):
    table = {"rounds": 4, "epochs": 1, "clients": 3, "method": method}
    plain = run(RunConfig(**table), tmp_path / "plain")
    watched = run(RunConfig(**table, diagnose=True), tmp_path / "watched")
    assert plain.model.same_as(watched.model)
    lines = [json.loads(line) for line in (tmp_path / "watched" / "history.jsonl").read_text().splitlines()]
    assert not KEYS & json.loads((tmp_path / "plain" / "history.jsonl").read_text().splitlines()[-1]).keys()
    for line in lines:
        assert KEYS - line.keys() == (set() if line["round"] else KEYS - {"gradient_norm", "probe_loss"})
        assert line["gradient_norm"] > 0
        if method == "fedsparsify-global":  # the smallest of what is left go, so the bound holds
            assert line["purged_norm"] <= line["purge_bound"] + 1e-9
    assert (lines[-1]["purged_norm"] > 0) == method.startswith("fedsparsify")


def test_the_probe_is_the_same_in_every_round_and_sees_kept_entries_only():
    config = RunConfig(clients=3)
    federation = Simulated(config, load_dataset("digits"))
    model = federation.initial()
    first, second = federation.probe(model), federation.probe(model)
    assert first == second
    half = model.under(np.arange(model.layout.trainable) % 2 == 0)
    nothing = model.under(np.zeros(model.layout.trainable, np.bool_))
    assert federation.probe(half).gradient_norm > 0
    assert federation.probe(nothing) == Probed(pytest.approx(math.log(10)), 0.0)


def test_resuming_keeps_the_keys(tmp_path):
    config = RunConfig(rounds=3, epochs=1, clients=3, diagnose=True)
    run(config, tmp_path / "a")
    before = (tmp_path / "a" / "history.jsonl").read_text()
    run(config, tmp_path / "a", resume=True)
    assert (tmp_path / "a" / "history.jsonl").read_text() == before


def test_a_server_refuses_it(elsewhere, here):
    (elsewhere / "c.toml").write_text("diagnose = true\n")
    code, _, errors = here("serve", "c.toml", "--insecure", "--out", "o")
    assert code == 2
    assert "diagnose looks at training samples" in errors
