"""Mean, worst and spread over clients, and runs that clients evaluate."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import RunConfig, load_dataset, partition, run
from fedsparsify.data import Dataset
from fedsparsify.data.holdout import hold_out
from fedsparsify.errors import ConfigError, DataError
from fedsparsify.federation.client_views import ClientEvaluation, client_views, lower_is_better
from fedsparsify.federation.environment import build_for
from fedsparsify.federation.ledger import read_history
from fedsparsify.federation.simulated import Simulated
from fedsparsify.federation.sweep import expand, sweep
from fedsparsify.notices import Notice
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.worker import Samples, evaluate


def test_literal_values():
    views = client_views(
        {
            4: ClientEvaluation(10, {"accuracy": 0.5, "loss": 2.0}),
            0: ClientEvaluation(30, {"accuracy": 0.9, "loss": 1.0}),
        }
    )
    assert views == {
        "accuracy": {
            "mean": 0.8,
            "worst": 0.5,
            "worst_client": 4,
            "spread": 0.2,
            "clients": 2,
            "by_client": {"client 0": 0.9, "client 4": 0.5},
        },
        "loss": {
            "mean": 1.25,
            "worst": 2.0,
            "worst_client": 4,
            "spread": 0.5,
            "clients": 2,
            "by_client": {"client 0": 1.0, "client 4": 2.0},
        },
    }


def test_values_that_are_not_finite_do_not_count():
    views = client_views(
        {
            0: ClientEvaluation(1, {"auc": math.nan, "loss": math.inf}),
            1: ClientEvaluation(1, {"auc": 0.7, "loss": math.nan}),
            2: ClientEvaluation(0, {"auc": 0.1}),
            3: ClientEvaluation(5, {}),
        }
    )
    assert views.keys() == {"auc"}
    assert (views["auc"]["mean"], views["auc"]["worst_client"], views["auc"]["clients"]) == (0.7, 1, 1)


def test_a_large_federation_lists_no_client():
    views = client_views({client: ClientEvaluation(1, {"accuracy": client / 200}) for client in range(101)})
    assert "by_client" not in views["accuracy"] and views["accuracy"]["worst"] == 0


def test_which_way_is_better():
    assert not any(map(lower_is_better, ("accuracy", "macro_f1", "auc", "lossless")))
    assert all(map(lower_is_better, ("loss", "train_loss", "mse", "my.metrics:mean-error")))


def config(**settings):
    return RunConfig(**{"rounds": 2, "epochs": 1, "clients": 4, "sparsity": 0.5, "split": "classes:4", **settings})


def test_every_client_is_evaluated_on_its_own_samples_in_one_pass():
    data, made = load_dataset("digits"), config(evaluate="both", participation=0.5)
    simulated = Simulated(made, data)
    model = simulated.initial()
    views = simulated.evaluate(model).client_views
    parts = partition(data.y_train, 4, "classes:4", made.seed)
    network = FlatModule(build_for(made, data), torch.device("cpu"))
    for client, part in enumerate(parts):
        _, held = hold_out(data.y_train, part, 0.2, made.seed, client)
        alone = evaluate(network, model, Samples.on(network.device, data.x_train[held], data.y_train[held]))
        assert views["accuracy"]["by_client"][f"client {client}"] == pytest.approx(alone.accuracy)
        assert views["loss"]["by_client"][f"client {client}"] == pytest.approx(alone.loss)


def test_held_out_samples_are_never_trained_on():
    data, made = load_dataset("digits"), config(evaluate="clients")
    held = np.concatenate([*Simulated(made, data)._held.values()])
    x, y = data.x_train.copy(), data.y_train.copy()
    x[held] += 5
    first, second = run(made, dataset=data), run(made, dataset=replace(data, x_train=x, y_train=y))
    assert np.array_equal(first.model.weights, second.model.weights)
    assert first.history[-1].client_views != second.history[-1].client_views
    assert np.array_equal(run(replace(made, evaluate="server")).model.weights, first.model.weights)


def test_a_resumed_run_has_the_same_bytes(tmp_path):
    made = config(evaluate="both", rounds=3, participation=0.5)
    run(made, tmp_path / "whole")

    def stop(entry):
        if entry.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "halves", on_round=stop)
    run(made, tmp_path / "halves", resume=True)
    files = [(tmp_path / name / "model.fsz").read_bytes() for name in ("whole", "halves")]
    views = [
        [entry.client_views for entry in read_history(tmp_path / n / "history.jsonl")] for n in ("whole", "halves")
    ]
    assert files[0] == files[1] and views[0] == views[1] and len(views[0]) == 3
    assert views[0][0]["accuracy"]["clients"] == 4  # also those that did not take part


def test_no_test_set_is_needed_where_clients_evaluate(elsewhere, here):
    data = load_dataset("digits")
    np.savez(elsewhere / "mine.npz", x_train=data.x_train[:200], y_train=data.y_train[:200])
    small = ("run", "--data", "mine.npz", "--rounds", 1, "--epochs", 1, "--clients", 2, "--method", "fedavg")
    code, _, said = here(*small, "--out", "a")
    assert code == 2 and "mine.npz has no test samples" in said and "--evaluate clients" in said
    assert not (elsewhere / "a").exists()
    code, said, _ = here(*small, "--out", "b", "--evaluate", "clients", "--holdout", "0.3")
    (entry,) = read_history(elsewhere / "b/history.jsonl")
    assert code == 0 and entry.accuracy == entry.client_views["accuracy"]["mean"]
    assert "mean over clients, weighted by samples" in said and "worst client" in said
    assert np.sum(json.loads((elsewhere / "b/partition.json").read_text())) == 140  # what is trained on


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"evaluate": "clients", "holdout": 0.0}, "a holdout above 0"),
        ({"evaluate": "clients", "holdout": 1.0}, r"holdout must lie in \[0, 1\)"),
        ({"holdout": -0.1}, r"holdout must lie in \[0, 1\)"),
        ({"evaluate": "client"}, "evaluate must be one of server, clients, both"),
    ],
)
def test_refused_settings(settings, said):
    with pytest.raises(ConfigError, match=said):
        RunConfig(**settings)


def test_clients_with_one_sample_are_named():
    data = load_dataset("digits")
    few = replace(data, x_train=data.x_train[:5], y_train=np.arange(5), x_test=data.x_test[:0], y_test=data.y_test[:0])
    with pytest.warns(Notice, match=r"not evaluated: 1 of 3 \(2\)"):
        simulated = Simulated(config(clients=3, split="iid", evaluate="clients"), few)
    assert [part.size for part in simulated.parts] == [1, 1, 1] and simulated._held.keys() == {0, 1}
    with pytest.raises(DataError, match="at least two samples of digits"):
        Simulated(config(clients=5, split="iid", evaluate="clients"), few)


def test_runs_of_a_sweep_are_those_of_one_alone(tmp_path):
    runs = expand({**config(evaluate="both").table(), "sweep": {"seed": [1, 2]}})
    sweep(runs, tmp_path, max_models=8)
    for planned in runs:
        alone = run(planned.config).history[-1].client_views
        together = read_history(tmp_path / planned.name / "history.jsonl")[-1].client_views
        assert together["accuracy"] == alone["accuracy"]


@pytest.mark.parametrize("kind", ["values", "labels", "pixels"])
def test_any_targets_and_metrics_are_those_of_each_client_alone(kind):
    rng = np.random.default_rng(0)
    x = rng.random((60, 1, 4, 4), np.float32)
    y = {
        "values": rng.random((60, 2)),
        "labels": rng.random((60, 3)) < 0.5,
        "pixels": rng.integers(0, 2, (60, 4, 4)),
    }[kind]
    data = Dataset("mine", x, y, x[:0], y[:0])
    network = nn.Conv2d(1, 2, 1) if kind == "pixels" else nn.Sequential(nn.Flatten(), nn.Linear(16, y.shape[1]))
    loss = {"values": "mse", "labels": "bce", "pixels": "cross-entropy"}[kind]
    made = config(evaluate="clients", split="iid", data=data, network=network, loss=loss)
    simulated = Simulated(made, data)
    model = simulated.initial()
    found = simulated.evaluate(model)
    flat = FlatModule(build_for(made, data), torch.device("cpu"))
    for client, held in simulated._held.items():
        samples = Samples.on(flat.device, data.x_train[held], data.y_train[held])
        alone = ClientEvaluation.of(held.size, evaluate(flat, model, samples, simulated.objective))
        assert alone.metrics.keys() == found.client_views.keys()
        for name, value in alone.metrics.items():
            assert found.client_views[name]["by_client"][f"client {client}"] == pytest.approx(value, rel=1e-5), name
    assert found.loss == found.client_views["loss"]["mean"]
    assert all(found.metrics[name] == found.client_views[name]["mean"] for name in found.metrics)
