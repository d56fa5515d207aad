"""Every experiment of the paper is a file that `fedsparsify sweep` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsparsify.config import read_toml
from fedsparsify.federation.sweep import expand

PAPER = Path(__file__).resolve().parents[1] / "experiments" / "paper"
DATA = {"fashion-mnist": ("fc", 2, 200, 5), "cifar10": ("cnn", 5, 200, 5), "cifar100": ("vgg16", 50, 100, 3)}


def runs_of(name: str):
    return [planned.config for planned in expand(read_toml(PAPER / f"{name}.toml"))]


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("clients", [10, 100])
@pytest.mark.parametrize("kind", ["iid", "noniid"])
def test_the_twelve_environments_are_the_papers(data, clients, kind):
    network, classes, rounds, sparsities = DATA[data]
    runs = runs_of(f"{data}-{clients}-{kind}")
    for run in runs:
        assert (run.data, run.network, run.clients, run.participants) == (data, network, clients, 10)
        assert (run.split, run.rounds, run.epochs) == ("iid" if kind == "iid" else f"classes:{classes}", rounds, 4)
    per_seed = 2 + 2 + 8 * sparsities  # two dense methods, PruneFL at two shares, and those with a sparsity
    assert len(runs) == 3 * per_seed
    dense = "fedavg" if data == "fashion-mnist" else "fedavg-mfl"
    assert {run.method_name for run in runs} >= {dense, "fedprox", "fedsparsify-global", "fedsparsify-local", "prunefl"}


@pytest.mark.parametrize("data", DATA)
def test_the_tables_count_bytes(data):
    runs = runs_of(f"{data}-table")
    assert len(runs) == 3 * (1 + DATA[data][3])
    assert all(run.wire and run.clients == 10 and run.split != "iid" for run in runs)


def test_tuning_and_vote():
    assert {run.method.every for run in runs_of("tuning-frequency")} == {1, 2, 5, 10, 15, 20}
    assert {run.method.exponent for run in runs_of("tuning-exponent")} == {1, 2, 3, 6, 12}
    vote = runs_of("majority-or-average")
    assert {(run.split, run.method.aggregate) for run in vote} == {
        (split, rule) for split in ("iid", "classes:2") for rule in ("majority", "average")
    }


def test_nothing_else_lies_there():
    tables = {f"{data}-table" for data in DATA} | {"tuning-frequency", "tuning-exponent", "majority-or-average"}
    environments = {f"{data}-{clients}-{kind}" for data in DATA for clients in (10, 100) for kind in ("iid", "noniid")}
    assert {path.stem for path in PAPER.iterdir()} == tables | environments
