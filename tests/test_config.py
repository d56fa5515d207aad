from __future__ import annotations

import tomllib

import pytest

from fedsparsify import RunConfig
from fedsparsify.config import load_config, make_config, read_toml, to_toml
from fedsparsify.errors import ConfigError
from fedsparsify.methods import FedSparsifyGlobal, FedSparsifyLocal


def test_the_papers_settings_are_the_defaults():
    fashion, cifar10, cifar100 = (RunConfig(data=name) for name in ("fashion-mnist", "cifar10", "cifar100"))
    assert (fashion.network, fashion.rounds, fashion.lr, fashion.batch_size, fashion.momentum) == (
        "fc",
        200,
        0.02,
        32,
        0,
    )
    assert (cifar10.network, cifar10.rounds, cifar10.lr, cifar10.momentum) == ("cnn", 200, 0.005, 0.75)
    assert (cifar100.network, cifar100.rounds, cifar100.lr, cifar100.momentum) == ("vgg16", 100, 0.01, 0.9)
    assert (cifar100.nesterov, cifar100.augment, cifar100.batch_size) == (True, "pad-crop-flip", 128)
    assert {config.epochs for config in (fashion, cifar10, cifar100)} == {4}
    assert fashion.seed == 1990


def test_what_is_said_wins_over_the_preset():
    assert RunConfig(data="cifar10", lr=1, rounds=3).lr == 1.0


def test_fedavg_is_plain_sgd_and_mfl_has_momentum():
    assert RunConfig(data="cifar10", method="fedavg").momentum == 0
    assert RunConfig(data="cifar10", method="fedavg-mfl").momentum == 0.75
    assert RunConfig(data="fashion-mnist", method="fedavg-mfl").momentum == 0.9
    assert RunConfig(data="cifar10", method="fedavg", momentum=0.5).momentum == 0.5


def test_a_method_by_name_by_table_and_by_object():
    same = [
        RunConfig(method="fedsparsify-global", sparsity=0.5),
        RunConfig(method={"name": "fedsparsify-global", "sparsity": 0.5}),
        RunConfig(method=FedSparsifyGlobal(sparsity=0.5)),
    ]
    assert same[0] == same[1] == same[2]
    assert same[0].method.rounds == 30


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(),
        RunConfig(data="cifar100", method="fedavg", clients=100, participation=0.1),
        RunConfig(method=FedSparsifyLocal(aggregate="average", every=3), split="dirichlet:0.5"),
    ],
)
def test_a_resolved_config_reads_back_as_the_same_run(config, tmp_path):
    (tmp_path / "run.toml").write_text(to_toml(config))
    assert load_config(tmp_path / "run.toml") == config
    assert config.differences(load_config(tmp_path / "run.toml")) == []


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"roundz": 3}, "Did you mean 'rounds'?"),
        ({"method": {"name": "fedsparsify-global", "sparcity": 0.9}}, "Did you mean 'sparsity'?"),
        ({"method": "fedsparsify-globl"}, "Did you mean 'fedsparsify-global'?"),
        ({"method": {"sparsity": 0.9}}, "must have a name"),
        ({"method": 3}, "must be a name"),
        ({"method": "fedavg", "sparsity": 0.9}, "has no setting 'method.sparsity'. Choose from: correction"),
        ({"sparsity": 95}, "Did you mean 0.95?"),
        ({"method": {"name": "fedsparsify-global", "start": 31}}, "t_0"),
        ({"method": {"name": "oneshot-ft", "tune": 30}}, "leave a round to train"),
        ({"method": {"name": "fedprox", "mu": -1}}, "must not be negative"),
        ({"method": {"name": "fedsparsify-local", "aggregate": "mean"}}, "one of majority, average"),
        ({"rounds": "ten"}, "rounds must be an integer. Received: 'ten'"),
        ({"rounds": 1.5}, "an integer"),
        ({"clients": True}, "an integer"),
        ({"rounds": 0}, "at least 1"),
        ({"lr": 0}, "lr must be positive"),
        ({"momentum": 1}, "[0, 1)"),
        ({"participation": 0}, "(0, 1]"),
        ({"min_clients": 11}, "must not exceed the 10"),
        ({"data": "cifar11"}, "Did you mean 'cifar10'?"),
        ({"split": "classes"}, "form classes:K"),
        ({"augment": "mixup"}, "one of none, pad-crop-flip"),
        ({"nesterov": 1}, "must be true or false. Received: 1"),
    ],
)
def test_mistakes(table, says):
    with pytest.raises(ConfigError) as caught:
        make_config(table)
    assert says in str(caught.value)
    assert "Received" in str(caught.value) or "no setting" in str(caught.value) or "there is no" in str(caught.value)


def test_a_mistake_in_a_file_names_the_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('data = "digits"\n\n[method]\nname = "fedsparsify-global"\nstart = 99\n')
    with pytest.raises(ConfigError, match=r"Received: start 99.*\(.*run\.toml, line 5\)"):
        load_config(path)
    path.write_text("rounds = \n")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(path)
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.toml")


def test_the_file_is_plain_toml():
    table = tomllib.loads(to_toml(RunConfig()))
    assert table["method"] == {
        "name": "fedsparsify-global",
        "sparsity": 0.9,
        "initial": 0.0,
        "start": 1,
        "every": 1,
        "exponent": 3.0,
        "end": 1.0,
        "score": "magnitude",
        "exclude": [],
        "min_density": 0.0,
        "server_optimizer": "sgd",
        "server_lr": "none",
        "server_momentum": 0.9,
        "server_beta2": 0.99,
        "server_tau": 0.001,
        "server_bias_correction": False,
        "correction": "none",
        "correction_strength": 0.1,
        "statistics": "mean",
    }
    assert list(table["method"])[:2] == ["name", "sparsity"]


def test_a_folder_in_place_of_a_config_says_what_to_type(tmp_path):
    with pytest.raises(ConfigError, match=r"is a folder, not a config\. Go on with its run by --out .* --resume"):
        read_toml(tmp_path)
