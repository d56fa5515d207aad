"""The settings of local training: learning rates by round and by step, defaults that depend on others, refusals."""

from __future__ import annotations

import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from fedsparsify import RunConfig, load_dataset, run
from fedsparsify.config import make_config, to_toml
from fedsparsify.errors import ConfigError
from fedsparsify.federation.simulated import Simulated
from fedsparsify.notices import Notice
from fedsparsify.training.rates import round_factor, step_factors

SMALL = {"rounds": 2, "epochs": 1, "clients": 2, "lr": 0.1}


def rates(rounds: int = 5, **settings: object) -> list[float]:
    """The learning rate of each round, at lr = 1."""
    config = RunConfig(lr=1, rounds=rounds, **settings)
    return [round(config.lr_at(number), 6) for number in range(1, rounds + 1)]


def test_rates_by_round():
    assert rates() == [1, 1, 1, 1, 1]
    assert rates(lr_schedule="cosine", lr_final=0.2) == [1, 0.882843, 0.6, 0.317157, 0.2]
    assert rates(lr_schedule="exponential", lr_final=0.0001) == [1, 0.1, 0.01, 0.001, 0.0001]
    assert rates(6, lr_schedule="step", lr_final=0.01) == [1, 1, 0.1, 0.1, 0.01, 0.01]
    assert rates(lr_schedule="step", lr_final=0.5, lr_drops=1) == [1, 1, 1, 0.5, 0.5]
    assert rates(lr_warmup=3) == [0.25, 0.5, 0.75, 1, 1]
    assert rates(lr_schedule="exponential", lr_final=0.25, lr_warmup=2) == [0.333333, 0.666667, 1, 0.5, 0.25]
    assert rates(1, lr_schedule="cosine") == [1]


def test_a_round_before_the_first_trains_at_the_rate_of_the_first():
    assert round_factor("exponential", 0, 5, 0.1, 2, 0) == pytest.approx(1 / 3)


@pytest.mark.parametrize("schedule", ["cosine", "step", "exponential"])
@pytest.mark.parametrize("rounds", [4, 7, 50])
def test_a_schedule_falls_from_lr_to_its_final_factor(schedule, rounds):
    found = rates(rounds, lr_schedule=schedule, lr_final=0.1)
    assert found[0] == 1 and found[-1] == pytest.approx(0.1) and found == sorted(found, reverse=True)


def test_rates_by_step():
    assert step_factors("linear", 5, 0.2).round(6).tolist() == [1, 0.8, 0.6, 0.4, 0.2]
    assert step_factors("cosine", 3, 0.2).round(6).tolist() == [1, 0.6, 0.2]
    assert step_factors("constant", 2, 1.0).tolist() == [1, 1]
    assert step_factors("linear", 1, 0.2).tolist() == [1]
    config = RunConfig(lr=2, rounds=2, lr_schedule="exponential", lr_final=0.5, lr_schedule_local="linear")
    assert config.rates(2, 3) == pytest.approx([1, 0.505, 0.01])


def test_defaults_follow_the_optimiser_and_the_schedules():
    sgd, adam, adamw = (RunConfig(data="cifar10", optimizer=name) for name in ("sgd", "adam", "adamw"))
    assert (sgd.lr, sgd.momentum, sgd.weight_decay) == (0.005, 0.75, 0)
    assert (adam.lr, adam.momentum, adam.weight_decay, adamw.weight_decay) == (0.001, 0, 0, 0.01)
    assert (sgd.lr_final, sgd.lr_drops, sgd.lr_final_local) == (1, 0, 1)
    falling = RunConfig(lr_schedule="step", lr_schedule_local="cosine")
    assert (falling.lr_final, falling.lr_drops, falling.lr_final_local) == (0.01, 2, 0.01)
    assert make_config({"optimizer": "adam", "lr": 0.5, "weight_decay": 1}).lr == 0.5


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"optimizer": "rmsprop"}, "optimizer must be one of sgd, adam, adamw. Received: 'rmsprop'"),
        ({"optimizer": "adam", "momentum": 0.9}, "settings of the optimizer sgd; adam has moments of its own"),
        ({"optimizer": "adamw", "nesterov": True}, "nesterov True"),
        ({"optimizer": "adam", "method": "fedavg-mfl"}, "Received: momentum 0.9"),
        ({"weight_decay": -0.1}, "weight_decay must be 0 or more. Received: -0.1"),
        ({"clip_norm": float("nan")}, "clip_norm must be 0 or more"),
        ({"label_smoothing": 10}, "label_smoothing must lie in [0, 1). Received: 10.0. Did you mean 0.1?"),
        ({"lr_schedule": "linear"}, "lr_schedule must be one of constant, cosine, step, exponential"),
        ({"lr_schedule": "cosine", "lr_final": 0}, "lr_final must lie in (0, 1]"),
        ({"lr_final": 0.5}, "lr_final needs a lr_schedule other than constant. Received: 0.5"),
        ({"lr_final_local": 0.5}, "lr_final_local needs a lr_schedule_local other than constant. Received: 0.5"),
        ({"lr_schedule_local": "linear", "lr_final_local": 1.5}, "lr_final_local must lie in (0, 1]"),
        ({"lr_warmup": 30, "rounds": 30}, "lr_warmup must be less than the 30 rounds of the run. Received: 30"),
        ({"lr_warmup": -1}, "lr_warmup must be at least 0. Received: -1"),
        ({"lr_drops": 3}, "lr_drops needs lr_schedule step. Received: 3, 'constant'"),
        ({"lr_schedule": "step", "rounds": 4, "lr_warmup": 2}, "less than the 2 rounds of the schedule. Received: 2"),
        ({"lr_schedule": "step", "lr_drops": 0}, "lr_drops must be at least 1"),
    ],
)
def test_mistakes(table, says):
    with pytest.raises(ConfigError) as caught:
        make_config(table)
    assert says in str(caught.value)


NEW = ("optimizer", "weight_decay", "clip_norm", "label_smoothing", "lr_schedule", "lr_final", "lr_warmup", "lr_drops")
NEW = (*NEW, "lr_schedule_local", "lr_final_local", "sam", "fixed_norms")


def test_a_run_from_before_these_settings_resumes(tmp_path):
    config = RunConfig(**SMALL)
    whole = run(config, tmp_path)
    text = "\n".join(line for line in to_toml(config).splitlines() if line.split(" =")[0] not in NEW)
    assert len(text.splitlines()) == len(to_toml(config).splitlines()) - len(NEW)
    (tmp_path / "config.toml").write_text(text)
    assert run(config, tmp_path, resume=True).model.same_as(whole.model)


@pytest.mark.parametrize(
    ("settings", "notices"),
    [
        ({}, []),
        ({"weight_decay": 0.1, "label_smoothing": 0.1, "lr_schedule": "cosine", "lr_schedule_local": "linear"}, []),
        ({"clip_norm": 1.0}, ["its kernels do not clip gradients"]),
        ({"optimizer": "adamw", "lr": 0.01}, ["its kernels have no adamw, only sgd"]),
    ],
    ids=["plain", "fast", "clip", "adamw"],
)
def test_a_back_end_that_lacks_a_setting_says_so(settings, notices):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Notice)
        federation = Simulated(RunConfig(**(SMALL | settings)), load_dataset("digits"))
        name = federation.environment.cohort.backend.name
    said = [str(one.message) for one in caught if issubclass(one.category, Notice)]
    assert len(said) == len(notices) and all(text in line for text, line in zip(notices, said, strict=True))
    assert name == ("dense" if notices else "native")


@pytest.mark.filterwarnings("ignore::fedsparsify.notices.Notice")
def test_adam_learns_and_a_stopped_run_ends_with_the_same_bytes(tmp_path):
    config = RunConfig(**SMALL | {"rounds": 3, "lr": 0.01}, optimizer="adam", keep_optimizer=True, lr_schedule="cosine")
    whole = run(config, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(entry):
        if entry.round == 2:
            raise Stop

    with pytest.raises(Stop):
        run(config, tmp_path / "cut", on_round=stop)
    assert run(config, tmp_path / "cut", resume=True).model.same_as(whole.model)
    assert whole.history[-1].accuracy > 0.7
    assert not whole.model.same_as(run(replace(config, keep_optimizer=False)).model)


PAGE = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.mark.filterwarnings("always::fedsparsify.notices.Notice")
@pytest.mark.parametrize("line", re.findall(r"```bash\n(.*?)\n```", PAGE.read_text("utf-8"), re.DOTALL))
def test_the_commands_of_the_page(elsewhere, here, recwarn, line):
    code, out, errors = here(*shlex.split(line)[1:])
    assert code == 0 and out, errors
    notices = [str(one.message) for one in recwarn]
    assert any("its kernels have no adamw" in text for text in notices) == ("adamw" in line)


def test_the_page_names_every_setting():
    flags = set(re.findall(r"^\| `?(.*?)` \|", PAGE.read_text("utf-8"), re.MULTILINE))
    named = {name for cell in flags for name in re.findall(r"--([\w-]+)", cell)}
    assert named == {name.replace("_", "-") for name in (*NEW, "lr", "momentum", "nesterov", "keep_optimizer")}
