"""`SparseStrategy` in rounds where nodes come, go, forget and fail; and inside strategies that change arrays."""

from __future__ import annotations

import logging
import random
import shutil

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.serverapp import strategy as flower
from test_strategy import Grid

from fedsparsify.errors import ClientError, ConfigError, FedSparsifyError
from fedsparsify.federation.flower import SparseStrategy, sparse_mod
from fedsparsify.federation.flower.messages import MODEL
from fedsparsify.methods import FedSparsifyGlobal
from fedsparsify.model import SparseModel
from fedsparsify.wire.codec import decode, known_name

START = {"w": np.random.default_rng(0).normal(size=(40, 50)).astype("f"), "steps": np.array(0), "b": np.ones(3, "f")}


@pytest.fixture(autouse=True)
def _told(caplog):
    caplog.set_level(logging.INFO, "flwr")
    random.seed(7)  # Flower draws its nodes from it


def arrays() -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in START.items()})


def app_of(*mods, measured=lambda message, context: {}, outer=()) -> ClientApp:
    """Trains by adding a little; evaluation counts zeros. `measured` are a node's other metrics."""
    app = ClientApp(mods=[*outer, sparse_mod, *mods])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trained = {
            name: Array(np.asarray(array.numpy() * 1.01, array.dtype))
            for name, array in message.content["arrays"].items()
        }
        metrics = MetricRecord({"num-examples": 5, "loss": 1.0} | measured(message, context))
        return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        zeros = float((message.content["arrays"]["w"].numpy() == 0).mean())
        metrics = MetricRecord({"num-examples": 5, "zeros": zeros} | measured(message, context))
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def rounds_of(strategy: SparseStrategy, grid: Grid, rounds: int = 8) -> flower.Result:
    return strategy.start(grid, arrays(), num_rounds=rounds)


def test_evaluation_at_nodes_that_seldom_train(tmp_path, caplog):
    strategy = SparseStrategy(sparsity=0.9, rounds=10, fraction_train=0.5, fraction_evaluate=1.0)
    grid = Grid(app_of(), tmp_path, nodes=4)
    result = rounds_of(strategy, grid, 10)
    assert set(result.evaluate_metrics_clientapp) == set(range(1, 11))
    assert result.evaluate_metrics_clientapp[10]["zeros"] == pytest.approx((strategy.model.tensors()["w"] == 0).mean())
    assert "lost their mask" not in caplog.text  # what a node confirmed is what it holds
    assert sum(known_name(m.content[MODEL]["model"]) is not None for m in grid.messages) > 20


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_node_without_its_masks_gets_the_whole_model_in_the_same_round(tmp_path, kind, damage, caplog):
    class Forgetful(Grid):
        def send_and_receive(self, messages, timeout=None):
            for message in messages:
                if message.metadata.message_type == kind and message.content["config"]["server-round"] == 3:
                    if len(messages) == 1:
                        break  # the second question
                    for path in (self.folder / "11").glob("*.mask"):
                        path.write_bytes(bytes(path.stat().st_size))
                    if damage == "lost":
                        shutil.rmtree(self.folder / "11")
                    break
            return super().send_and_receive(messages, timeout)

    strategy = SparseStrategy(sparsity=0.9, rounds=5)
    grid = Forgetful(app_of(), tmp_path)
    result = rounds_of(strategy, grid, 5)
    assert caplog.text.count("the whole model is sent to nodes that lost their mask: [11]") == 1
    assert "left out" not in caplog.text and strategy.model.sparsity == pytest.approx(0.9, abs=0.01)
    assert set(result.train_metrics_clientapp) == set(result.evaluate_metrics_clientapp) == set(range(1, 6))


def test_what_a_node_evaluates_is_the_servers_model(tmp_path):
    seen = []

    class Watching(Grid):
        def send_and_receive(self, messages, timeout=None):
            messages = list(messages)
            replies = super().send_and_receive(messages, timeout)
            for message, reply in zip(messages, replies, strict=True):
                if message.metadata.message_type == "evaluate":
                    seen.append((reply.content["metrics"]["zeros"], float((strategy.model.tensors()["w"] == 0).mean())))
            return replies

    strategy = SparseStrategy(sparsity=0.9, rounds=5, fraction_train=0.5, fraction_evaluate=1.0)
    rounds_of(strategy, Watching(app_of(), tmp_path, nodes=4), 5)
    assert len(seen) == 20 and all(theirs == ours for theirs, ours in seen)


def test_a_node_that_joins_in_the_middle(tmp_path):
    class Growing(Grid):
        def send_and_receive(self, messages, timeout=None):
            replies = super().send_and_receive(messages, timeout)
            self.nodes += 1
            return replies

    strategy = SparseStrategy(sparsity=0.9, rounds=3)
    rounds_of(strategy, Growing(app_of(), tmp_path), 3)
    assert strategy.model.sparsity == pytest.approx(0.9, abs=0.01)


def test_one_nodes_failure_is_left_out_and_named(tmp_path, caplog):
    def spoil(node, round, reply):
        question = Message(RecordDict(), node, "train")
        if (node, round) == (10, 1):
            return Message(Error(code=1, reason="out of memory"), reply_to=question)
        if (node, round) == (10, 2):
            return Message(RecordDict(), reply_to=question)
        if (node, round) == (10, 3):
            reply.content["metrics"]["num-examples"] = 0
        if (node, round) == (10, 4):
            reply.content["metrics"]["another"] = 1.0
        if (node, round) == (10, 5):
            reply.content["metrics"]["num-examples"] = [5.0]
        if (node, round) == (10, 6):
            reply.content["metrics"]["num-examples"] = float("nan")
        if (node, round) == (10, 7):
            reply.content["more"] = MetricRecord({"a": 1})
        return reply

    class Named(Grid):
        def send_and_receive(self, messages, timeout=None):
            messages = list(messages)
            replies = super().send_and_receive(messages, timeout)
            for message, reply in zip(messages, replies, strict=True):
                reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
            return replies

    strategy = SparseStrategy(sparsity=0.9, rounds=8)
    result = rounds_of(strategy, Named(app_of(), tmp_path, spoil, nodes=3))
    assert set(result.evaluate_metrics_clientapp) == set(result.train_metrics_clientapp) == set(range(1, 9))
    assert caplog.text.count("node 10 is left out") == 12 and "left out: it sent 0 records of metrics" in caplog.text
    assert "node 11 is left out" not in caplog.text and caplog.text.count("node 10: out of memory") == 2
    assert strategy.model.sparsity == pytest.approx(0.9, abs=0.01)


def test_no_evaluation_and_no_training(tmp_path, caplog):
    strategy = SparseStrategy(sparsity=0.9, rounds=3, fraction_evaluate=0.0)
    assert not rounds_of(strategy, Grid(app_of(), tmp_path), 3).evaluate_metrics_clientapp
    strategy = SparseStrategy(sparsity=0.9, rounds=3, fraction_train=0.0)
    result = rounds_of(strategy, Grid(app_of(), tmp_path), 3)
    assert not result.train_metrics_clientapp and result.evaluate_metrics_clientapp[3]["zeros"] == 0


def test_a_second_start_begins_anew(tmp_path, caplog):
    strategy = SparseStrategy(sparsity=0.9, rounds=3)
    first = rounds_of(strategy, Grid(app_of(), tmp_path / "a"), 3)
    other = ArrayRecord({"v": Array(np.arange(1, 41, dtype=np.float32))})
    grid = Grid(app_of(), tmp_path / "b")
    strategy.fraction_evaluate = 0.0
    assert strategy.start(grid, other, num_rounds=3).arrays["v"].shape == (40,)  # another network, even
    again = rounds_of(strategy, Grid(app_of(), tmp_path / "c"), 3)
    assert again.arrays["w"].data == first.arrays["w"].data


def test_arrays_keep_their_order(tmp_path):
    """Loops that go by `to_numpy_ndarrays` know arrays by their place; 'steps' is no trained array."""
    seen = []

    def measured(message, context):
        seen.append(list(message.content["arrays"]))
        return {}

    result = rounds_of(SparseStrategy(rounds=1), Grid(app_of(measured=measured), tmp_path), 1)
    assert seen[0] == list(START) == list(result.arrays)


WRAPPERS = {
    "DifferentialPrivacyServerSideFixedClipping": {"noise_multiplier": 0.0, "clipping_norm": 0.1},
    "DifferentialPrivacyClientSideFixedClipping": {"noise_multiplier": 1.0, "clipping_norm": 0.1},
    "DifferentialPrivacyServerSideAdaptiveClipping": {"noise_multiplier": 0.01},
    "DifferentialPrivacyClientSideAdaptiveClipping": {"noise_multiplier": 0.01},
}


class Wrapper(flower.Strategy):
    """A wrapper of one's own, that hands everything on."""

    def __init__(self, inner):
        self.inner = inner

    def configure_train(self, *arguments):
        return self.inner.configure_train(*arguments)

    def aggregate_train(self, *arguments):
        return self.inner.aggregate_train(*arguments)

    def configure_evaluate(self, *arguments):
        return self.inner.configure_evaluate(*arguments)

    def aggregate_evaluate(self, *arguments):
        return self.inner.aggregate_evaluate(*arguments)

    def summary(self):
        pass


@pytest.mark.parametrize("name", [*WRAPPERS, "Wrapper"])
def test_wrappers_are_refused_by_name_before_the_first_round(tmp_path, name):
    inner, grid = SparseStrategy(sparsity=0.9, rounds=3), Grid(app_of(), tmp_path)
    if name == "Wrapper":
        wrapped = Wrapper(inner)
    else:
        wrapped = getattr(flower, name)(inner, num_sampled_clients=2, **WRAPPERS[name])
    with pytest.raises(ConfigError, match=f"{name} cannot be wrapped around SparseStrategy"):
        wrapped.start(grid, arrays(), num_rounds=3)
    assert grid.messages == []


def test_every_wrapper_of_flowers_is_known():
    """A new one in a later Flower is refused as well, but should be named in the docs."""
    assert {name for name in dir(flower) if name.startswith("Differential")} == set(WRAPPERS)


def test_a_strategy_that_starts_ours_is_no_wrapper(tmp_path):
    class Search(Wrapper):
        def best(self, grid):
            return self.inner.start(grid, arrays(), num_rounds=2)

    assert Search(SparseStrategy(rounds=2)).best(Grid(app_of(), tmp_path)).arrays


def test_what_a_derived_class_changes_is_sent_or_refused(tmp_path):
    class Noisy(SparseStrategy):
        """Adds to the weights that are left, in the model that is sent as well where `both` says so."""

        both = False

        def aggregate_train(self, server_round, replies):
            found, metrics = super().aggregate_train(server_round, replies)
            model = self.model
            weights = model.weights + np.float32(0.5) * (np.arange(model.weights.size) < model.mask.size)
            noisy = SparseModel.masked(model.layout, weights.astype("f"), model.mask)
            found["w"] = Array(noisy.tensors()["w"])
            found["b"] = Array(noisy.tensors()["b"])
            if self.both:
                self.model = noisy
            return found, metrics

    with pytest.raises(ConfigError, match=r"round 1: the arrays are not those of `strategy\.model`"):
        rounds_of(Noisy(sparsity=0.9, rounds=3), Grid(app_of(), tmp_path / "a"), 3)
    strategy, grid = Noisy(sparsity=0.9, rounds=3), Grid(app_of(), tmp_path / "b")
    strategy.both = True
    result = rounds_of(strategy, grid, 3)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), strategy.model.tensors()["w"])


def test_a_mod_inside_ours_reaches_the_wire_under_the_mask(tmp_path):
    sent = []

    def look(node, round, reply):
        sent.append((strategy.model, reply.content[MODEL]["model"]))
        return reply

    noise = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=10.0, delta=1e-5)
    strategy = SparseStrategy(sparsity=0.9, rounds=4, fraction_evaluate=0.0)
    rounds_of(strategy, Grid(app_of(noise), tmp_path, look), 4)
    for model, blob in sent[-2:]:
        theirs = decode(blob, model.mask, model.layout)
        assert not theirs.weights[: model.mask.size][~model.mask].any()
        assert np.abs(theirs.weights - 1.01 * model.weights)[: model.mask.size][model.mask].min() > 0


def test_a_mod_outside_ours_is_named_and_trains_nothing(tmp_path):
    outer = ClientApp(mods=[LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=10.0, delta=1e-5), sparse_mod])
    outer.train()(lambda message, context: message)
    strategy = SparseStrategy(sparsity=0.9, rounds=1, fraction_evaluate=0.0)
    with pytest.raises(ClientError, match=r"round 1: none of the 2 nodes .* by sparse_mod \(LocalDpMod expects"):
        rounds_of(strategy, Grid(outer, tmp_path), 1)


@pytest.mark.parametrize("outer", [[], [message_size_mod], [arrays_size_mod, message_size_mod]])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_loop_that_answers_with_an_error(tmp_path, kind, outer):
    """Flower's `message_size_mod` makes "Message content is None" of an error that is returned."""

    def broken(message: Message, context: Context, call_next) -> Message:
        if message.metadata.message_type == kind:
            return Message(Error(code=3, reason="no scans today"), reply_to=message)
        return call_next(message, context)

    with pytest.raises(FedSparsifyError, match=r"answers with an error: no scans today \(code 3\)"):
        rounds_of(SparseStrategy(rounds=1), Grid(app_of(broken, outer=outer), tmp_path), 1)


def test_mods_that_measure_messages_work_outside_and_inside_ours(tmp_path, caplog):
    mods = [message_size_mod, arrays_size_mod]
    grid = Grid(app_of(*mods, outer=mods), tmp_path)

    def forget(node, round, reply):
        if round == 2:  # the answer that lacks a mask passes the mods as well
            shutil.rmtree(tmp_path / "10", ignore_errors=True)
        return reply

    grid.spoil = forget
    result = rounds_of(SparseStrategy(sparsity=0.9, rounds=3), grid, 3)
    assert set(result.train_metrics_clientapp) == set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    assert "the whole model is sent" in caplog.text and "left out" not in caplog.text
    assert "Incoming message size" in caplog.text


def test_networks_with_batch_norm_keep_the_order_of_their_state_dict(tmp_path):
    """Loops and mods that `zip(state_dict, arrays)`; the statistics lie between trained arrays."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 5))
    expected, seen = list(net.state_dict()), []

    def measured(message, context):
        seen.append(list(message.content["arrays"]))
        return {}

    app = app_of(fixedclipping_mod, measured=measured)
    strategy = SparseStrategy(sparsity=0.5, fraction_evaluate=0.0)
    result = strategy.start(
        Grid(app, tmp_path),
        ArrayRecord(net.state_dict()),
        num_rounds=2,
        train_config=ConfigRecord({"clipping_norm": 10.0}),
    )
    assert seen == [expected] * 4 and list(result.arrays) == expected and set(result.train_metrics_clientapp) == {1, 2}
    assert expected[2:5] == ["1.weight", "1.bias", "1.running_mean"]


def test_other_rounds_than_the_schedules_are_refused_before_any_training(tmp_path):
    grid = Grid(app_of(), tmp_path)
    for strategy in (SparseStrategy(sparsity=0.9, rounds=3), SparseStrategy(FedSparsifyGlobal(rounds=3))):
        for rounds in (1, 2, 6):
            with pytest.raises(ConfigError, match=rf"num_rounds must be the rounds=3 .* Received: {rounds}\."):
                rounds_of(strategy, grid, rounds)
    with pytest.raises(ConfigError, match=r"the rounds of its method, 3\. Received: rounds=6"):
        SparseStrategy(FedSparsifyGlobal(rounds=3), rounds=6)
    assert grid.messages == []


def test_the_schedule_follows_num_rounds_where_no_rounds_are_given(tmp_path):
    strategy = SparseStrategy(sparsity=0.9, fraction_evaluate=0.0)
    found = [rounds_of(strategy, Grid(app_of(), tmp_path / str(rounds)), rounds) for rounds in (6, 2)]
    reached = [[metrics["sparsity"] for metrics in one.train_metrics_clientapp.values()] for one in found]
    assert [len(one) for one in reached] == [6, 2] and all(one[-1] == pytest.approx(0.9, abs=0.01) for one in reached)
    assert reached[0][2] < 0.8  # not at round 3 of 6
    rounds_of(SparseStrategy(FedSparsifyGlobal(sparsity=0.5)), Grid(app_of(), tmp_path / "m"), 2)
    with pytest.raises(ConfigError, match="needs `rounds`"):
        SparseStrategy().configure_train(1, arrays(), ConfigRecord(), Grid(app_of(), tmp_path))


@pytest.mark.parametrize("kind", ["raises", "answers"])
def test_clients_without_the_mod_end_the_run_in_its_first_round(tmp_path, kind):
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if kind == "raises":  # as Flower turns a loop's KeyError into a reply
            return Message(Error(code=2, reason="<class 'KeyError'>:<'arrays'>"), reply_to=message)
        content = RecordDict({"arrays": arrays(), "metrics": MetricRecord({"num-examples": 5})})
        return Message(content, reply_to=message)

    grid = Grid(app, tmp_path)
    found = "KeyError" if kind == "raises" else "an answer of another kind"
    with pytest.raises(
        ClientError, match=rf"round 1: none of the 2 nodes .*{found}.* need ClientApp\(mods=\[sparse_mod"
    ):
        rounds_of(SparseStrategy(sparsity=0.9), grid, 3)
    assert len(grid.messages) == 2


def test_one_client_without_the_mod_is_left_out_and_named(tmp_path, caplog):
    def spoil(node, round, reply):
        if node == 10:
            reply.content = RecordDict({"arrays": arrays(), "metrics": MetricRecord({"num-examples": 5, "loss": 1.0})})
        return reply

    strategy = SparseStrategy(sparsity=0.9, fraction_evaluate=0.0, min_train_nodes=1)
    rounds_of(strategy, Grid(app_of(), tmp_path, spoil), 2)
    assert caplog.text.count("node 10 is left out: the message has no record 'fedsparsify'") == 2
    assert "sparse_mod" in caplog.text and strategy.model.sparsity == pytest.approx(0.9, abs=0.01)


def test_evaluation_at_clients_says_the_worst_and_the_spread(tmp_path):
    def measured(message, context):
        return {"accuracy": {10: 0.9, 11: 0.5, 12: 0.7}[context.node_id], "eval_loss": float(context.node_id)}

    strategy = SparseStrategy(sparsity=0.9, min_available_nodes=3)
    result = rounds_of(strategy, Grid(app_of(measured=measured), tmp_path, nodes=3), 2)
    found = result.evaluate_metrics_clientapp[2]
    assert found["accuracy"] == pytest.approx(0.7) and found["accuracy-worst"] == 0.5
    assert found["accuracy-spread"] == pytest.approx(np.std([0.9, 0.5, 0.7])) and found["eval_loss-worst"] == 12.0
    assert not {"num-examples-worst", "num-examples-spread"} & {*found}
