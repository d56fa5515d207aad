"""Server optimisers and corrections by hand, against Flower's strategies, and in every pairing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import small_model
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from fedsparsify import METHODS, RunConfig, run
from fedsparsify.errors import ConfigError
from fedsparsify.methods import ClientContext, FedSparsifyGlobal, Method, ServerContext, Update, ask_client, merged
from fedsparsify.state import under

RNG = np.random.default_rng(0)
START = [1.0, -2.0, 0.5, 3.0]
ROUNDS = [  # (trained weights, samples) of three clients in two rounds
    [([1.5, -2.0, 0.5, 2.0], 1), ([0.5, -1.0, 0.0, 3.0], 2), ([1.0, -3.0, 1.0, 1.0], 1)],
    [([1.0, -1.0, 0.5, 2.5], 2), ([0.0, -1.5, 0.5, 2.0], 1), ([2.0, -2.5, 0.0, 1.5], 1)],
]


def played(method: Method, rounds=ROUNDS, rates: float = 0.5, start=START) -> list[np.ndarray]:
    """The global weights after each round; every client answers its request with the given weights."""
    model, state, clients, ends = small_model(start), {}, {}, []
    for round, answers in enumerate(rounds, 1):
        updates = []
        for number, (weights, samples) in enumerate(answers):
            sent = {name: state[name] for name in method.broadcasts if name in state}
            me = ClientContext(number, under(clients.get(number, {}), model), sent)
            playing = ask_client(method, round, model, me)
            next(playing)
            with pytest.raises(StopIteration) as done:
                playing.send(Update(small_model(weights).under(model.mask), samples, 0.0, number, rates=rates))
            update = done.value.value
            clients[number] = update.state or {}
            updates.append(update)
        model, state = merged(method, round, model, updates, RNG, ServerContext(state, clients=4))
        ends.append(model.weights)
    return ends


def means(weighted: bool) -> list[np.ndarray]:
    return [
        np.average([weights for weights, _ in answers], 0, [samples if weighted else 1 for _, samples in answers])
        for answers in ROUNDS
    ]


def close(found, expected) -> None:
    np.testing.assert_allclose(np.stack(found), np.stack(expected), rtol=0, atol=1e-6)


def test_momentum_by_hand():
    w, v, ends = np.array(START), np.zeros(4), []
    for mean in means(weighted=True):
        v = 0.9 * v + (mean - w)
        w = w + 0.3 * v
        ends.append(w)
    close(played(METHODS["fedavgm"](rounds=2, server_lr=0.3)), ends)
    assert ends[0].tolist() == pytest.approx([0.9625, -1.925, 0.4625, 2.775])


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_adaptive_by_hand(name):
    w, m, v, ends = np.array(START), np.zeros(4), np.zeros(4), []
    for mean in means(weighted=True):
        delta = mean - w
        m = 0.9 * m + 0.1 * delta
        squared = delta**2
        v = {
            "fedadam": 0.99 * v + 0.01 * squared,
            "fedyogi": v - 0.01 * squared * np.sign(v - squared),
            "fedadagrad": v + squared,
        }[name]
        w = w + 0.05 * m / (np.sqrt(v) + 1e-3)
        ends.append(w)
    close(played(METHODS[name](rounds=2, server_lr=0.05)), ends)


def test_a_longer_step_by_hand():
    w, ends = np.array(START), []
    for mean in means(weighted=True):
        w = w + 1.5 * (mean - w)
        ends.append(w)
    close(played(METHODS["fedavg"](rounds=2, server_lr=1.5)), ends)


def test_feddyn_by_hand():
    alpha, w, h, ends = 0.1, np.array(START), np.zeros(4), []
    for mean in means(weighted=False):  # three of four clients take part
        h = h - alpha * 3 / 4 * (mean - w)
        w = mean - h / alpha
        ends.append(w)
    close(played(METHODS["feddyn"](rounds=2)), ends)


def test_feddyn_asks_clients_for_its_terms():
    method, model = METHODS["feddyn"](rounds=2, correction_strength=0.5), small_model([1, 2])
    first = next(ask_client(method, 1, model, ClientContext()))
    assert first.prox == 0.5 and first.linear is None
    playing = ask_client(method, 2, model, ClientContext(state={"control": np.array([1, -1], np.float32)}))
    assert next(playing).linear.tolist() == [-1, 1]
    with pytest.raises(StopIteration) as done:
        playing.send(Update(small_model([3, 2]), 1))
    assert done.value.value.state["control"].tolist() == [0, -1] and not done.value.value.sent


def test_scaffold_by_hand():
    rates, w, c, mine, ends = 0.5, np.array(START), np.zeros(4), np.zeros((3, 4)), []
    for answers, mean in zip(ROUNDS, means(weighted=False), strict=True):
        new = np.stack([mine[i] - c + (w - np.array(weights)) / rates for i, (weights, _) in enumerate(answers)])
        c = c + (new - mine).sum(0) / 4
        mine, w = new, mean
        ends.append(w)
    close(played(METHODS["scaffold"](rounds=2), rates=rates), ends)
    method, model = METHODS["scaffold"](rounds=2), small_model([1, 2])
    me = ClientContext(state={"control": np.array([1, 0], np.float32)}, received={"control": np.array([4, 2], "f")})
    playing = ask_client(method, 2, model, me)
    assert next(playing).linear.tolist() == [3, 2]
    with pytest.raises(StopIteration) as done:
        playing.send(Update(small_model([0, 4]), 1, rates=0.5))
    assert done.value.value.sent["control"].tolist() == [-2, -6]  # (1 − 0) / 0.5 − 4 and (2 − 4) / 0.5 − 2
    assert done.value.value.state["control"].tolist() == [-1, -6]


def by_flower(made: flower.Strategy) -> list[np.ndarray]:
    """What a strategy of Flower's makes of the same updates."""
    current, ends = {"w": np.array(START)}, []
    for round, answers in enumerate(ROUNDS, 1):
        made.current_arrays = ArrayRecord({"w": Array(current["w"])}) if isinstance(made, flower.FedAvgM) else current
        contents = [
            RecordDict({"arrays": ArrayRecord({"w": Array(np.array(w))}), "m": MetricRecord({"num-examples": n})})
            for w, n in answers
        ]
        told = SimpleNamespace(src_node_id=1)
        replies = [SimpleNamespace(content=content, has_error=lambda: False, metadata=told) for content in contents]
        record, _ = made.aggregate_train(round, replies)
        current = {"w": record["w"].numpy()}
        ends.append(current["w"])
    return ends


def test_momentum_as_flower_has_it():
    theirs = flower.FedAvgM(server_learning_rate=0.3, server_momentum=0.9)
    close(played(METHODS["fedavgm"](rounds=2, server_lr=0.3)), by_flower(theirs))


@pytest.mark.parametrize(
    ("name", "theirs", "more"),
    [
        ("fedadam", flower.FedAdam, {"server_bias_correction": True}),
        ("fedyogi", flower.FedYogi, {}),
        ("fedadagrad", flower.FedAdagrad, {}),
    ],
)
def test_adaptive_as_flower_has_it(name, theirs, more):
    ours = METHODS[name](rounds=2, server_lr=0.05, server_momentum=0.9 if name != "fedadagrad" else 0.0, **more)
    settings = {"eta": 0.05, "tau": 1e-3}
    close(played(ours), by_flower(theirs(**settings)))


def test_the_purge_follows_the_step_and_clears_the_memory():
    method = FedSparsifyGlobal(rounds=2, sparsity=0.5, server_optimizer="momentum", exponent=1.0)
    model, state = merged(
        method,
        2,
        small_model(START),
        [Update(small_model([1, 5, 0, 3]), 1)],
        RNG,
        ServerContext({"momentum": np.ones(4, np.float32)}),
    )
    # The step leads to [1.9, 5.9, 0.9, 3.9].
    assert model.weights.tolist() == pytest.approx([0, 5.9, 0, 3.9])
    assert state["momentum"].tolist() == pytest.approx([0, 7.9, 0, 0.9])


COMPOSING = [name for name, kind in METHODS.items() if kind.averages]
PAIRS = list(product(("sgd", "momentum", "adam", "yogi", "adagrad"), ("none", "feddyn", "scaffold")))


def config(name: str, optimizer: str, correction: str) -> RunConfig:
    table = {"name": name, "server_optimizer": optimizer, "correction": correction}
    table |= {"tune": 1} if name == "oneshot-ft" else {}
    return RunConfig(method=table, clients=3, participation=0.67, rounds=3, epochs=1, lr=0.05, batch_size=64)


def check(name: str, optimizer: str, correction: str, folder) -> None:
    """Refused by name, or exact, finite and resumed to the same bytes."""
    if correction == "feddyn" and optimizer != "sgd":
        with pytest.raises(ConfigError, match="'feddyn' gives the server's model itself"):
            config(name, optimizer, correction)
        return
    planned = config(name, optimizer, correction)
    whole = run(planned)
    if planned.method.exact and hasattr(planned.method, "sparsity"):
        assert whole.model.pruned == int(planned.method.schedule(3) * whole.model.layout.trainable)

    def stop(entry):
        if entry.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(planned, folder, on_round=stop)
    assert run(planned, folder, resume=True).model.same_as(whole.model)
    assert whole.model.finite and whole.history[-1].upload_bytes > 0


@pytest.mark.parametrize(("optimizer", "correction"), PAIRS)
def test_every_pairing_is_exact_and_resumes_to_the_same_bytes(optimizer, correction, tmp_path):
    """One method per pairing in turn, so that every method and every pairing is run; the slow test runs all of them."""
    check(COMPOSING[PAIRS.index((optimizer, correction)) % len(COMPOSING)], optimizer, correction, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSING)
def test_every_method_in_every_pairing(name, tmp_path):
    for optimizer, correction in PAIRS:
        check(name, optimizer, correction, tmp_path / f"{optimizer}-{correction}")


@pytest.mark.parametrize("name", [name for name in METHODS if name not in COMPOSING])
def test_methods_that_do_not_average_refuse_them(name):
    with pytest.raises(ConfigError, match=r"has no setting 'method\.server_optimizer'"):
        config(name, "momentum", "none")


class OwnMerge(FedSparsifyGlobal):
    """Passes nothing on."""

    def merge(self, round, model, updates, rng):
        return super().merge(round, model, updates, rng)


class OwnClient(FedSparsifyGlobal):
    """Passes nothing on."""

    def client(self, round, model):
        return (yield from super().client(round, model))


def test_a_class_that_does_not_pass_its_context_on_refuses_them():
    with pytest.raises(ConfigError, match="OwnMerge has a merge of its own"):
        OwnMerge(rounds=1, server_optimizer="momentum")
    with pytest.raises(ConfigError, match="OwnClient has a client of its own"):
        OwnClient(rounds=1, correction="scaffold")
    run(RunConfig(method=OwnMerge(), rounds=1, epochs=1, clients=2))
    run(RunConfig(method=OwnClient(server_optimizer="momentum"), rounds=1, epochs=1, clients=2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"server_lr": 0.0},
        {"server_momentum": 1.0},
        {"server_tau": 0.0},
        {"server_beta2": -1.0},
        {"correction_strength": 0.0},
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"method.{next(iter(wrong))} must"):
        FedSparsifyGlobal(rounds=1, **wrong)


def test_scaffold_counts_its_bytes_and_feddyn_sends_none():
    sizes = {}
    for correction in ("none", "feddyn", "scaffold"):
        result = run(replace(config("fedsparsify-global", "sgd", correction), min_clients=1))
        sizes[correction] = [(entry.download_bytes, entry.upload_bytes) for entry in result.history]
    assert sizes["feddyn"][0][1] == pytest.approx(sizes["none"][0][1], rel=0.01)
    assert sizes["scaffold"][0][1] == pytest.approx(2 * sizes["none"][0][1], rel=0.1)
    assert sizes["scaffold"][0][0] == sizes["none"][0][0]  # the server has nothing to send before the first round
    assert sizes["scaffold"][2][0] > 1.8 * sizes["none"][2][0]
