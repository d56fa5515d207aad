"""What is wrong with a network is said before any training is paid for."""

from __future__ import annotations

import numpy as np
import pytest

from fedsparsify import RunConfig, run
from fedsparsify.data import Dataset, load_dataset
from fedsparsify.errors import ConfigError, DataError
from fedsparsify.federation.simulated import Simulated
from fedsparsify.notices import Notice

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


@pytest.fixture
def written(elsewhere, request):
    """A module of a user's own, from the body of its `forward`."""

    def write(forward: str, init: str = "self.layer = nn.Linear(64, 10)") -> str:
        name = f"users_{abs(hash((forward, init)))}"
        lines = [HEAD, "class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        {line}" for line in init.split("\n")] + ["    def forward(self, x):"]
        (elsewhere / f"{name}.py").write_text("\n".join([*lines, *(f"        {line}" for line in forward.split("\n"))]))
        return f"{name}:Net"

    return write


def config(network: str, **more) -> RunConfig:
    return RunConfig(network=network, **{"rounds": 1, "epochs": 1, "clients": 3} | more)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        ("return self.layer(x.flatten(1)), x", "as one tensor. Received: tuple"),
        ("return {'logits': self.layer(x.flatten(1))}", "as one tensor. Received: dict"),
        ("self.layer(x.flatten(1))", "as one tensor. Received: NoneType"),
        ("y = self.layer(x.flatten(1))\nreturn (y, y) if self.training else y", "Received: tuple"),
        ("return self.layer(x.flatten(1)).argmax(1)", r"Received: \(2,\)"),
        ("return self.layer(x.flatten(1)).double()", "of torch.float64"),
        ("return self.layer(x.flatten(1)).detach()", "cannot be trained: element 0 of tensors does not require grad"),
        (
            "self.layer.bias = nn.Parameter(self.layer.bias * 1)\nreturn self.layer(x.flatten(1))",
            "replaces its parameter",
        ),
        ("raise KeyError('lost')", "does not take samples .* 'lost'"),
        ("h = self.layer(x.flatten(1)).exp()\nh.add_(1)\nreturn h", "modified by an inplace operation"),
    ],
)
def test_networks_that_do_not_fit_are_refused(written, forward, message):
    with pytest.raises(ConfigError, match=message):
        run(config(written(forward)))


def test_a_factory_must_make_a_new_network_each_time(elsewhere):
    (elsewhere / "users_single.py").write_text(
        HEAD + "NET = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\nnet = lambda: NET\n"
    )
    with pytest.raises(ConfigError, match="must make a new network at every call"):
        run(config("users_single:net"))


def test_lazy_layers_are_given_their_sizes(written):
    lazy = written("return self.layer(x.flatten(1))", "self.layer = nn.LazyLinear(10)")
    assert run(config(lazy)).history[-1].accuracy > 0.2


def test_a_last_batch_of_one_sample_is_refused_for_batch_norm_before_the_first_round(written):
    normed = written(
        "return self.norm(self.layer(x.flatten(1)))", "self.layer = nn.Linear(64, 10)\nself.norm = nn.BatchNorm1d(10)"
    )
    data = load_dataset("digits")
    uneven = Dataset("uneven", data.x_train[:67], data.y_train[:67], data.x_test, data.y_test)
    with pytest.raises(DataError, match="client 1 holds 33 samples, in batches of 16"):
        Simulated(config(normed, clients=2, batch_size=16), uneven)
    for plain in ("fc", normed):  # another network, or another batch size, may train
        batch = 16 if plain == "fc" else 15
        assert run(config(plain, clients=2, batch_size=batch), dataset=uneven).history


@pytest.mark.parametrize(
    ("forward", "init", "message"),
    [
        (
            "return torch.cumsum(self.layer(x.flatten(1)), 1)",
            "self.layer = nn.Linear(64, 10)",
            r"calls cumsum.*\(at users_\d+\.py:\d+, in forward\)",
        ),
        (
            "return self.layer(x.flatten(1))",
            "self.layer = nn.Sequential(nn.Linear(64, 10), nn.Softshrink())",
            r"layer\.1: no graph has a Softshrink.*\(at users",
        ),
        (
            "return self.layer(x.flatten(1)) if x.sum() > 0 else self.layer(-x.flatten(1))",
            "self.layer = nn.Linear(64, 10)",
            r"cannot trace.*\(at users_\d+\.py:\d+, in forward\)",
        ),
        (
            "return self.layer(x.flatten(1))",
            "self.layer = nn.Linear(64, 10)\nself.layer.register_forward_hook(lambda m, i, o: o * 2)",
            r"'layer' \(Linear\) has a forward hook",
        ),
        (
            "return self.layer(x.flatten(1)[:, torch.tensor([1, 0, 2, 3])])",
            "self.layer = nn.Linear(4, 10)",
            "the engine will not run this network.*take",
        ),
    ],
)
def test_a_network_that_will_not_export_or_infer_is_named_at_the_start(written, forward, init, message):
    rounds = []
    with pytest.warns(Notice, match=message) as caught:
        run(config(written(forward, init)), on_round=lambda entry: rounds.append(len(caught)))
    assert len(caught) == 1
    assert rounds == [1]


@pytest.mark.parametrize(
    ("forward", "init", "name"),
    [
        ("self.calls += 1\nreturn self.layer(x.flatten(1))", "self.layer = nn.Linear(64, 10)\nself.calls = 0", "calls"),
        (
            "self.seen.append(1)\nreturn self.layer(x.flatten(1))",
            "self.layer = nn.Linear(64, 10)\nself.seen = []",
            "seen",
        ),
        ("self.last = x\nreturn self.layer(x.flatten(1))", "self.layer = nn.Linear(64, 10)", "last"),
        (
            "self.level.add_(1)\nreturn self.layer(x.flatten(1))",
            "self.layer = nn.Linear(64, 10)\nself.level = torch.zeros(1)",
            "level",
        ),
        (
            "self.level.add_(1)\nreturn self.layer(x.flatten(1))",
            "self.layer = nn.Linear(64, 10)\nself.register_buffer('level', torch.zeros(1), persistent=False)",
            "level",
        ),
        (
            "self.steps.add_(1)\nreturn self.layer(x.flatten(1))",
            "self.layer = nn.Linear(64, 10)\nself.register_buffer('steps', torch.zeros(1, dtype=torch.int64))",
            "steps",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:the model's file will have no graph")
def test_state_that_is_not_part_of_the_model_is_named(written, forward, init, name):
    with pytest.warns(Notice, match=f"forward changes {name} of the network"):
        run(config(written(forward, init)))


def test_a_network_that_writes_into_its_input_leaves_the_test_samples_alone(written):
    greedy = written("x.mul_(-1)\nreturn self.layer(x.flatten(1))")
    data = load_dataset("digits")
    before = data.x_test.copy(), data.x_train.copy()
    with pytest.warns(Notice, match="writes into its input"):
        first = run(config(greedy, rounds=3), dataset=data)
    assert np.array_equal(before[0], data.x_test)
    assert np.array_equal(before[1], data.x_train)
    with pytest.warns(Notice, match="writes into its input"):
        assert run(config(greedy, rounds=3), dataset=data).model.same_as(first.model)


def test_tensors_without_a_weight_are_named_in_the_ledger(tmp_path, here):
    code, out, _ = here("run", "--rounds", 3, "--clients", 2, "--epochs", 1, "--sparsity", 0.999, "--out", "dead")
    assert code == 0
    assert "no weight is left in " in out
    from fedsparsify.federation.ledger import read_history
    from fedsparsify.wire.artefact import load

    model, last = load("dead/model.fsz"), read_history(tmp_path / "dead" / "history.jsonl")[-1]
    kept = {name: mask.any() for name, mask in model.layout.views(np.append(model.mask, [])).items()}
    assert last.empty == [name for name, some in kept.items() if not some]
    assert last.empty
