"""FedSparsify+ in reports: a series of its own, with what was overridden, and claims of ours."""

from __future__ import annotations

import pytest

from fedsparsify import RunConfig
from fedsparsify.report import environments_of
from fedsparsify.report.claims import CLAIMS, claims_table
from fedsparsify.report.page import page_of
from fedsparsify.report.plus_claims import OURS
from fedsparsify.report.runs import Run
from fedsparsify.report.tables import accuracies, comparison


def made(accuracy=0.7, sent=100, **settings) -> Run:
    settings = {"data": "fashion-mnist", "split": "classes:2", "sparsity": 0.95} | settings
    if "method" in settings:
        settings.pop("sparsity")
    config = RunConfig(**settings)
    return Run(
        name="a run",
        table=config.table(),
        round=[*range(config.rounds - 9, config.rounds + 1)],
        accuracy=[accuracy] * 10,
        nonzero=[100] * 10,
        paper_params=[sent] * 10,
        sent_params=[sent] * 10,
        total=1000,
    )


def labels(*runs: Run) -> list[str]:
    return [one.label for environment in environments_of(runs) for one in environment.series]


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"recipe": "paper"}, "FedSparsify-Global"),
        ({}, "FedSparsify+"),
        ({"data": "cifar10"}, "FedSparsify+"),
        ({"data": "cifar10", "augment": "none"}, "FedSparsify+ (augment none)"),
        ({"data": "cifar100"}, "FedSparsify+"),
        ({"data": "cifar100", "optimizer": "adamw"}, "FedSparsify+"),
        ({"data": "cifar100", "weight_decay": 0.0}, "FedSparsify+ (weight_decay 0)"),
        ({"lr": 0.1}, "FedSparsify+ (lr 0.1)"),
        ({"optimizer": "adam"}, "FedSparsify+"),
        ({"lr_schedule": "constant"}, "FedSparsify+ (lr_schedule constant)"),
        ({"method": {"name": "fedsparsify-global", "score": "magnitude"}}, "FedSparsify+ (score magnitude)"),
        ({"method": {"name": "fedsparsify-global", "end": 1.0}}, "FedSparsify+ (end 1)"),
        ({"method": {"name": "fedsparsify-global", "server_optimizer": "sgd"}}, "FedSparsify+ (server_optimizer sgd)"),
        ({"method": {"name": "fedsparsify-global", "correction": "feddyn"}}, "FedSparsify+ (correction feddyn)"),
        ({"method": "fedavg"}, "FedAvg+"),
        ({"method": "fedadam"}, "FedAdam+"),
        ({"method": "snip"}, "SNIP+"),
    ],
)
def test_the_label_says_plus_and_what_is_not_of_the_recipe(settings, label):
    assert labels(made(**{"recipe": "plus"} | settings)) == [label]


def test_a_users_network_may_be_of_either_kind():
    run = made(recipe="plus")
    run.table["network"] = "mine:net"
    assert labels(run) == ["FedSparsify+"]
    run = made(data="cifar10", recipe="plus")
    run.table.update(network="mine:net", data="mine.npz", lr=0.02)
    assert labels(run) == ["FedSparsify+"]


def test_both_recipes_stand_beside_each_other():
    runs = [made(), made(recipe="plus"), made(method="fedavg"), made(method="fedavg", recipe="plus")]
    old = made(seed=3)
    del old.table["recipe"]  # as runs before there were recipes
    (environment,) = environments_of([*runs, old])
    names = ["FedAvg", "FedAvg+", "FedSparsify-Global", "FedSparsify+"]
    assert [(one.label, len(one.runs), one.dotted) for one in environment.series] == [
        *((names[0], 1, False), (names[1], 1, True), (names[2], 2, False), (names[3], 1, False)),
    ]
    assert environment.dense().label == "FedAvg"
    assert environment.dense("plus").label == "FedAvg+"
    assert [one.label for one in environment.usual()] == names
    shown = [str(row[0]) for row in comparison(environment).rows]
    assert shown == ["FedAvg", "the paper", "FedAvg+", "FedSparsify-Global", "the paper", "FedSparsify+"]
    alone = environments_of([made(recipe="plus")])[0]
    assert [str(row[0]) for row in accuracies(alone).rows] == ["FedSparsify+", "the paper"]
    page = page_of([environment], [])
    assert '"label":"FedSparsify+","method":"FedSparsify+"' in page


def test_claims_of_ours_are_checked_where_there_are_runs():
    def verdicts(*runs: Run) -> list[str]:
        return [str(row[1]) for row in claims_table(environments_of(runs)).rows[len(CLAIMS) :]]

    assert verdicts(made()) == []
    assert verdicts(made(recipe="plus")) == ["no runs"] * len(OURS)
    plus, dense = made(0.78, 90, recipe="plus"), made(0.785, recipe="plus", method="fedavg")
    assert verdicts(made(0.74), plus, dense) == ["holds", "holds", "holds"]
    assert verdicts(made(0.79, 80), plus, made(0.8, recipe="plus", method="fedavg")) == ["does not hold"] * 3
    shorter = made(0.82, 50, data="cifar10", recipe="plus")  # 100 rounds beside 200
    assert verdicts(made(0.75, data="cifar10"), shorter) == ["holds", "holds", "no runs"]
    shown = claims_table(environments_of([made(0.75, data="cifar10"), shorter])).rows[len(CLAIMS)]
    assert str(shown[2]) == "CIFAR-10 10 Non-IID, 0.95, 100 and 200 rounds: 0.820, Global 0.750"
    varied = made(0.78, 90, recipe="plus", lr=0.1)
    assert verdicts(made(0.74), varied) == ["no runs"] * 3


def test_the_papers_claims_are_of_the_papers_recipe():
    environments = environments_of([made(0.9, recipe="plus"), made(0.5, recipe="plus", method="fedavg")])
    assert {str(row[1]) for row in claims_table(environments).rows[: len(CLAIMS)]} == {"no runs"}


def test_the_papers_rounds_have_the_shorter_name():
    found = environments_of([made(data="cifar10", recipe="plus"), made(data="cifar10")])
    assert [(one.slug, one.table["rounds"]) for one in found] == [
        ("cifar10-10-classes-2", 200),
        ("cifar10-10-classes-2-v2", 100),
    ]
    assert [one.title for one in found] == [
        "CIFAR-10, 10 clients, Non-IID(2)",
        "CIFAR-10, 10 clients, Non-IID(2), 100 rounds",
    ]
