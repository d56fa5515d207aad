"""Losses and metrics by name, in configs."""

from __future__ import annotations

import pytest

from fedsparsify import RunConfig
from fedsparsify.config import make_config, to_toml
from fedsparsify.errors import ConfigError
from fedsparsify.tasks import higher_is_better
from fedsparsify.toml import loads


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"loss": "msee"}, "no loss 'msee'. Did you mean 'mse'"),
        ({"metrics": "acuracy"}, "no metric 'acuracy'. Did you mean 'accuracy'"),
        ({"metrics": ["top-0"]}, "no metric 'top-0'"),
        ({"loss": "mse", "metrics": ["accuracy"]}, "'accuracy' measures classes or yes-or-no labels.*has values.*r2"),
        ({"metrics": ["r2"]}, "'r2' measures values"),
        ({"metrics": ["auc", "auc"]}, "names 'auc' twice"),
        ({"metrics": 3}, "metrics must be a list"),
    ],
)
def test_unknown_names_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        RunConfig(**settings)


def test_metrics_in_every_form():
    expected = ("macro-f1", "top-3", "mine:score")
    for given in ("macro-f1,top-3, mine:score", ["macro-f1", "top-3", "mine:score"], ["macro-f1,top-3", "mine:score"]):
        config = RunConfig(metrics=given)
        assert config.metrics == expected
        assert make_config(loads(to_toml(config))) == config
    assert RunConfig().metrics == ()


def test_configs_of_older_runs_minimise_cross_entropy():
    table = RunConfig().table()
    del table["loss"], table["metrics"]
    assert make_config(table) == RunConfig()


def test_which_direction_is_better():
    better = {"accuracy": True, "top-7": True, "r2": True, "mse": False, "mae": False, "loss": False, "mine:f": True}
    assert {name: higher_is_better(name) for name in better} == better
