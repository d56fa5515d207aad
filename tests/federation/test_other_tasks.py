"""Runs of other tasks than classes of one float input: losses, targets, inputs and splits, from start to files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedsparsify import Engine, Entry, RunConfig, load_dataset, run
from fedsparsify.data import Dataset
from fedsparsify.errors import ConfigError, DataError
from fedsparsify.federation.ledger import best_of, line, read_history
from fedsparsify.notices import Notice
from fedsparsify.report import write_report
from fedsparsify.report.environments import environments_of
from fedsparsify.report.load import load_runs
from fedsparsify.report.site import write_site
from fedsparsify.wire.artefact import load_facts

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 3))
Y = X @ [1.0, -2.0, 0.5]
TOKENS = RNG.integers(0, 9, (120, 4))
SOME = {"rounds": 2, "epochs": 1, "clients": 3, "method": "fedavg", "lr": 0.1}
NETWORKS = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 5), nn.Linear(5, classes)
    def forward(self, x):
        return self.layer(self.table(x).mean(1))

class Both(Words):
    def forward(self, tokens, facts):
        return super().forward(tokens) + facts.sum(1, keepdim=True)

def pixels(shape, classes):
    return nn.Conv2d(shape[0], classes, 1)

def flat(shape, outputs):
    return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))

def pulled(output, target):
    return (output - target).abs().pow(1.5).mean()

def table(output, target):
    return output - target

def number(output, target):
    return 3.0
"""


def data(x, y, name="mine", **more) -> Dataset:
    half = slice(100), slice(100, None)
    parts = [{key: part[rows] for key, part in x.items()} if isinstance(x, dict) else x[rows] for rows in half]
    return Dataset(name, parts[0], y[half[0]], parts[1], y[half[1]], **more)


@pytest.fixture
def networks(elsewhere):
    (elsewhere / "other_networks.py").write_text(NETWORKS)
    return elsewhere


pytestmark = pytest.mark.filterwarnings("ignore:.*not trained by the native", "ignore:.*will have no graph")


def test_a_regression_from_start_to_report(networks):
    config = RunConfig(data="mine:mine", loss="mse", **SOME | {"rounds": 4})
    result = run(config, networks / "run", dataset=data(X, Y))
    last = result.history[-1]
    assert (last.accuracy, [*last.metrics], last.headline) == (None, ["r2", "mae"], "r2")
    assert last.score > 0.8 > result.history[0].score
    assert repr(result).startswith(f"Result(r2 {last.score:.4g} after round 4")
    raw = [json.loads(text) for text in (networks / "run" / "history.jsonl").read_text().splitlines()]
    assert "accuracy" not in raw[0] and raw[-1]["metrics"] == last.metrics
    assert read_history(networks / "run" / "history.jsonl") == result.history
    facts = load_facts(networks / "run" / "model.fsz")
    assert (facts["loss"], facts["targets"], facts["metrics"]) == ("mse", "values", last.metrics)
    assert "accuracy" not in facts
    predicted = Engine(networks / "run" / "model.fsz").run(X[100:])
    assert np.abs(predicted[:, 0] - Y[100:]).mean() == pytest.approx(last.metrics["mae"], rel=1e-4)
    assert write_report(networks / "run") == []
    page = (networks / "run" / "report.html").read_text()
    assert '"measure":"r2"' in page and '"mae":[' in page
    runs, notes = load_runs([networks / "run"])
    site = write_site(environments_of(runs), notes, networks / "site")
    (name,) = [table for table in site.tables if table.startswith("r2-")]
    assert "| r2 |" in (networks / "site" / "tables" / f"{name.replace('r2', 'table')}.md").read_text()
    head, row = (networks / "site" / "tables" / "runs.csv").read_text().splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    assert cells["accuracy"] == "" and float(cells["mae"]) == pytest.approx(last.metrics["mae"])


def test_a_stopped_regression_ends_with_the_same_bytes(networks):
    config = RunConfig(data="mine:mine", loss="huber", metrics="mse", keep_optimizer=True, momentum=0.5, **SOME)
    whole = run(config, networks / "whole", dataset=data(X, Y))

    def stop(entry: Entry) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, networks / "stopped", on_round=stop, dataset=data(X, Y))
    run(config, networks / "stopped", resume=True, dataset=data(X, Y))
    names = ("model.fsz", "history.jsonl")
    same = [(networks / "whole" / name).read_bytes() == (networks / "stopped" / name).read_bytes() for name in names]
    assert same[0]
    assert [e.metrics for e in whole.history] == [
        e.metrics for e in read_history(networks / "stopped" / "history.jsonl")
    ]


def test_whole_numbers_are_classes_or_values_as_the_loss_says():
    years = np.round(30 + 10 * Y)  # some of the test set are not in the training set, some are negative
    assert run(RunConfig(data="mine:mine", loss="mae", metrics="mae", **SOME), dataset=data(X, years.astype(int)))
    floats = run(RunConfig(data="mine:mine", **SOME), dataset=data(X, (Y > 0).astype(np.float32)))
    whole = run(RunConfig(data="mine:mine", **SOME), dataset=data(X, (Y > 0).astype(int)))
    assert floats.history[-1].accuracy == whole.history[-1].accuracy
    with pytest.raises(DataError, match=r"counts its classes from 1.*subtract 1"):
        run(RunConfig(data="mine:mine", **SOME), dataset=data(X, 1 + (Y > 0)))


def test_labels(networks):
    labels = np.stack([Y > 0, X[:, 0] > 0], 1)
    result = run(RunConfig(data="mine:mine", loss="bce", metrics="auc,accuracy", **SOME), dataset=data(X, labels))
    assert result.history[-1].metrics["auc"] > 0.7
    assert result.history[-1].headline == "accuracy"  # every label of a sample is right
    one = run(
        RunConfig(data="mine:mine", loss="bce", split="classes:1", **SOME | {"clients": 2}), dataset=data(X, Y > 0)
    )
    assert one.history[-1].headline == "label-accuracy"


def test_tokens_and_several_inputs(networks):
    y = TOKENS[:, 0] % 3
    config = RunConfig(data="mine:mine", network="other_networks:Words", **SOME)
    assert run(config, dataset=data(TOKENS, y)).history[-1].accuracy > 0
    both = {"tokens": TOKENS, "facts": X}
    config = RunConfig(data="mine:mine", network="other_networks:Both", **SOME)
    named = run(config, networks / "run", dataset=data(both, y))
    assert load_facts(networks / "run" / "model.fsz")["shape"] == {"tokens": [4], "facts": [3]}
    placed = Dataset("placed", (TOKENS[:100], X[:100]), y[:100], (TOKENS[100:], X[100:]), y[100:])
    assert run(config, dataset=placed).model.weights.tolist() == named.model.weights.tolist()
    with pytest.raises(ConfigError, match=r"does not take .*index out of range.*integers, here 1 … 9.*a row for each"):
        run(RunConfig(data="mine:mine", network="other_networks:Words", **SOME), dataset=data(TOKENS + 1, y))
    with pytest.raises(ConfigError, match=r"augment 'pad-crop-flip' takes images.*Received: samples of shape \(4,\)"):
        run(RunConfig(data="mine:mine", network="other_networks:Words", augment="pad-crop-flip", **SOME),
            dataset=data(TOKENS, y))  # fmt: skip


def test_integers_become_floats_for_a_network_that_takes_floats(networks):
    config, y = RunConfig(data="mine:mine", **SOME), TOKENS[:, 0] % 3
    integers = run(config, dataset=data(TOKENS, y))
    assert integers.model.weights.tolist() == run(config, dataset=data(TOKENS.astype(float), y)).model.weights.tolist()


def test_a_class_per_pixel(networks):
    x = RNG.standard_normal((120, 1, 4, 4))
    config = RunConfig(data="mine:mine", network="other_networks:pixels", metrics="mean-iou", **SOME | {"lr": 1.0})
    last = run(config, dataset=data(x, (x[:, 0] > 0).astype(int))).history[-1]
    assert last.accuracy > 0.8 and last.metrics["mean-iou"] > 0.6


def test_a_loss_of_a_users_own(networks):
    for network in ("fc", "other_networks:flat"):  # (n, 1) and (n,) beside targets (n,)
        config = RunConfig(data="mine:mine", network=network, loss="other_networks:pulled", **SOME)
        assert run(config, dataset=data(X, Y)).history[-1].metrics["r2"] > 0.3
    for loss, says in (("table", r"one number.*Received: a tensor of \(2,\)"), ("number", "Received: float")):
        with pytest.raises(ConfigError, match=says):
            run(RunConfig(data="mine:mine", loss=f"other_networks:{loss}", **SOME), dataset=data(X, Y))


@pytest.mark.parametrize(
    ("settings", "y", "says"),
    [
        ({}, Y, "integer classes.*For regression, name another loss"),
        ({"loss": "bce"}, Y, "must hold labels, 0 or 1"),
        ({"loss": "mse", "split": "classes:2"}, Y, "needs one class per sample"),
        ({"split": "column"}, Y > 0, "needs a column of client ids"),
        ({"loss": "mse"}, np.where(Y > 0, np.nan, Y), "y_train holds values that are not numbers"),
    ],
)
def test_targets_that_do_not_fit(settings, y, says):
    with pytest.raises(DataError, match=says):
        run(RunConfig(data="mine:mine", **SOME | settings), dataset=data(X, y))


@pytest.mark.parametrize(
    ("y", "settings", "says"),
    [
        ((X > 0).astype(int), {}, r"must give \(batch, 2, 3\) logits.*Received: \(2, 2\).*use loss 'bce'"),
        (np.eye(3)[TOKENS[:, 0] % 3], {}, r"y_train looks one-hot.*y.argmax\(1\)"),
        (Y, {"loss": "mse", "network": "other_networks:pixels"}, "does not take samples"),
    ],
)
def test_outputs_that_do_not_fit(networks, y, settings, says):
    with pytest.raises(ConfigError, match=says):
        run(RunConfig(data="mine:mine", **SOME | settings), dataset=data(X, y))


def test_images_with_channels_last_are_explained_where_a_network_refuses_them():
    images = data(RNG.standard_normal((120, 8, 8, 3)), (Y > 0).astype(int))
    with pytest.raises(ConfigError, match=r"'cnn' takes images.*channels last.*transpose\(0, 3, 1, 2\)"):
        run(RunConfig(data="mine:mine", network="cnn", **SOME), dataset=images)


def test_a_column_of_clients_is_pointed_out_and_used():
    ids = np.arange(100) % 3
    made = data(X, (Y > 0).astype(int), clients=ids)
    with pytest.warns(Notice, match="says who holds each sample, and split is 'iid'"):
        run(RunConfig(data="mine:mine", **SOME), dataset=made)
    assert run(RunConfig(data="mine:mine", split="column", **SOME), dataset=made).history


def test_raw_bytes_give_the_ledgers_accuracy_in_three_lines(networks):
    digits = np.load(load_dataset.__globals__["__file__"].replace("load.py", "digits.npz"))
    raw, y = (digits["images"] * 15).astype(np.uint8)[:, None], digits["labels"].astype(int)
    np.savez("mine.npz", x_train=raw[:1500], y_train=y[:1500], x_test=raw[1500:], y_test=y[1500:])
    result = run(RunConfig(data="mine.npz", **SOME | {"rounds": 5, "epochs": 4}), networks / "run")
    x_test, y_test = raw[1500:], y[1500:]

    engine = Engine("run/model.fsz")
    predicted = engine.run(x_test).argmax(1)
    accuracy = (predicted == y_test).mean()
    assert accuracy == result.history[-1].accuracy > 0.6
    transposed = np.asfortranarray(x_test)  # the layout in memory makes no difference
    assert (engine.run(transposed).argmax(1) == predicted).all()


def test_older_histories_are_read(tmp_path):
    entry = Entry(round=1, accuracy=0.5, loss=1.0, target_sparsity=0, sparsity=0, nonzero=1, clients=1,
                  download_params=1, upload_params=1, paper_params=1, train_loss=1.0, seconds=1.0)  # fmt: skip
    text = line(entry)
    assert "metrics" not in text
    (tmp_path / "history.jsonl").write_text(text)
    (read,) = read_history(tmp_path / "history.jsonl")
    assert (read, read.shown(), read["metrics"]) == (entry, "accuracy 0.5000", {})


def test_the_best_round_by_a_measure_that_falls():
    def entry(round: int, value: float) -> Entry:
        return Entry(round=round, metrics={"mse": value}, loss=1.0, target_sparsity=0, sparsity=0, nonzero=1, clients=1,
                     download_params=1, upload_params=1, paper_params=1, train_loss=1.0, seconds=1.0)  # fmt: skip

    assert best_of([entry(1, 3.0), entry(2, 1.0), entry(3, float("nan")), entry(4, 2.0)]).round == 2
