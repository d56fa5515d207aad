"""Every experiment, of the paper and of its rivals, is a file that `fedsparsify sweep` takes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from fedsparsify.config import read_toml
from fedsparsify.federation.sweep import expand

PAPER = Path(__file__).resolve().parents[1] / "experiments" / "paper"
DATA = {"fashion-mnist": ("fc", 2, 200, 5), "cifar10": ("cnn", 5, 200, 5), "cifar100": ("vgg16", 50, 100, 3)}


RIVALS = PAPER.parent / "rivals"


def runs_of(name: str, folder: Path = PAPER):
    return [planned.config for planned in expand(read_toml(folder / f"{name}.toml"))]


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


@pytest.mark.parametrize("path", sorted(RIVALS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_sweep_of_the_rivals_can_be_made_by_its_second_line(path):
    _, command, *_ = path.read_text().splitlines()
    assert command.startswith(f"# fedsparsify sweep experiments/rivals/{path.name}")
    for run in runs_of(path.stem, RIVALS):
        run.method.schedule(run.rounds)


@pytest.mark.parametrize("alpha", ["1000", "1", "0.1"])
def test_environment_a(alpha):
    runs = runs_of(f"a-cifar10-{alpha}", RIVALS)
    plus = runs_of(f"a-cifar10-{alpha}-plus", RIVALS)
    for run in runs + plus:
        assert (run.network, run.split, run.clients, run.participants) == (
            "resnet18",
            f"dirichlet-equal:{alpha}",
            100,
            10,
        )
        assert (run.rounds, run.epochs, run.batch_size, run.weight_decay, run.augment) == (700, 1, 16, 1e-3, "none")
        assert (run.lr_at(1), run.lr_at(700)) == (0.5, pytest.approx(0.01))
        assert run.wire
    assert len(runs) == 3 * (1 + 6 * 3) and len(plus) == 3 * 3
    assert {run.method_name for run in runs} >= {
        "fedavg",
        "fedsparsify-global",
        "sparsyfed",
        "ssfl",
        "fedrts",
        "feddst",
    }


def test_environments_b_and_c():
    for run in runs_of("b-cifar10", RIVALS):
        assert (run.network, run.rounds, run.epochs, run.batch_size, run.lr_at(500)) == ("resnet18", 500, 5, 64, 0.01)
    for run in runs_of("c-cifar10", RIVALS):
        assert (run.network, run.rounds, run.epochs, run.batch_size) == ("resnet18-gn", 999, 5, 16)
        assert (run.lr_at(1), run.lr_at(999)) == (0.1, pytest.approx(0.1 * 0.998**998, rel=1e-3))
        assert (run.clip_norm, run.weight_decay, run.augment) == (10, 5e-4, "pad-crop-flip")


def test_what_the_paper_still_lacks():
    new = runs_of("paper-cifar100-10-iid", RIVALS) + runs_of("paper-cifar100-100", RIVALS)
    assert {(run.clients, run.split) for run in new} == {(10, "iid"), (100, "iid"), (100, "classes:50")}
    assert {run.seed for run in new} == {1990, 1991, 1992}
    for name in ("paper-cifar10-table-seeds", "paper-cifar100-table-seeds"):
        assert all(run.wire and run.seed in (1991, 1992) for run in runs_of(name, RIVALS))


def test_the_plan_has_every_sweep_and_its_present_figures():
    plan = runpy.run_path(str(RIVALS / "plan.py"))["rows"](RIVALS)
    page = (RIVALS / "README.md").read_text()
    assert "\n".join(plan) in page
    assert all(f"`{path.stem}`" in page for path in RIVALS.glob("*.toml"))
