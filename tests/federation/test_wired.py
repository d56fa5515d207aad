"""What travels: bytes that are really those of blobs, and models that have really been through them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import TWINS, small_model

from fedsparsify import METHODS, RunConfig, run, save
from fedsparsify.errors import ConfigError, RunError
from fedsparsify.federation.checkpoint import Checkpoint
from fedsparsify.federation.known_masks import KnownMasks
from fedsparsify.federation.rounds import run_rounds
from fedsparsify.federation.wired import Wired
from fedsparsify.methods import FedAvg, FedSparsifyGlobal, Update
from fedsparsify.training.worker import Evaluation
from fedsparsify.wire.codec import decode, encode

WEIGHTS = np.linspace(0.1, 4, 40, dtype=np.float32)


class Scripted:
    """A federation of which round t asks the clients `rounds[t - 1]`; each adds its number to the weights."""

    kept: dict = {}  # noqa: RUF012

    def __init__(self, *rounds):
        self.rounds, self.received = rounds, []

    def ask(self, method, round, model, sent=None):
        self.received.append(model)
        for client in self.rounds[round - 1]:
            weights = np.where(model.mask, model.weights + client, 0).astype(np.float32)
            yield Update(small_model(weights, model.mask), samples=1, client=client)

    def evaluate(self, model):
        return Evaluation(0.5, 1.0)


def test_bytes_are_the_lengths_of_the_blobs_that_would_be_sent():
    model = small_model(WEIGHTS)
    method = FedSparsifyGlobal(rounds=3, sparsity=0.5)
    inner = Scripted([0, 1], [1], [0, 1, 2])
    rounds = list(run_rounds(Wired(inner), method, model, 1, 3, seed=0))
    models = [model, *(m for m, _, _ in rounds)]
    first, second, third = (entry for _, entry, _ in rounds)

    def down(t, known):
        return len(
            encode(models[t - 1], None if known is None else models[known - 1].mask, layout_known=known is not None)
        )

    def up(t, client):
        sent = small_model(np.where(models[t - 1].mask, models[t - 1].weights + client, 0), models[t - 1].mask)
        return len(encode(sent, models[t - 1].mask, layout_known=True))

    assert (first.download_bytes, first.upload_bytes) == (2 * down(1, None), up(1, 0) + up(1, 1))
    assert (second.download_bytes, second.upload_bytes) == (down(2, 1), up(2, 1))
    # Client 0 missed a round, client 1 did not, client 2 is new and gets everything.
    assert third.download_bytes == down(3, 1) + down(3, 2) + down(3, None)
    assert third.upload_bytes == sum(up(3, client) for client in (0, 1, 2))


def test_lossless_is_the_same_run_to_the_bit():
    settings = {"rounds": 11, "epochs": 1, "clients": 4, "participation": 0.5}
    for method in sorted(METHODS.keys() - TWINS):
        wired = run(RunConfig(method=method, **settings))
        plain = run(RunConfig(method=method, wire=False, **settings))
        assert wired.model.same_as(plain.model)
        assert all(entry.upload_bytes and entry.download_bytes for entry in wired.history)
        assert all(entry.upload_bytes is None and entry.download_bytes is None for entry in plain.history)


def test_the_lossless_shortcut_is_what_decoding_gives():
    """fp32 is not decoded in a simulation; the bytes it counts are those of blobs that decode to the same models."""
    seen = []

    class Watched(Wired):
        def _received(self, encoder, known, model):
            count, arrived = super()._received(encoder, known, model)
            blob = encode(model, known, layout_known=known is not None)
            assert len(blob) == count and decode(blob, known, model.layout).same_as(arrived)
            seen.append(count)
            return count, arrived

    rounds = run_rounds(
        Watched(Scripted([0, 1], [1, 2])), FedSparsifyGlobal(rounds=2, sparsity=0.5), small_model(WEIGHTS), 1, 2, 0
    )
    assert len(list(rounds)) == 2 and len(seen) == 4


@pytest.mark.parametrize(("precision", "error"), [("fp16", 2e-3), ("bf16", 2e-2), ("int8", 2e-2)])
def test_lossy_precision_really_acts_on_both_ways(precision, error):
    model = small_model(WEIGHTS)
    inner = Scripted([0])
    [(merged, entry, _)] = run_rounds(Wired(inner, precision), FedAvg(rounds=1), model, 1, 1, seed=0)
    [received] = inner.received
    assert received.same_as(decode(encode(model, precision=precision))) and not received.same_as(model)
    assert merged.same_as(decode(encode(received, precision=precision)))
    np.testing.assert_allclose(merged.weights, model.weights, atol=error)
    [(_, lossless, _)] = run_rounds(Wired(Scripted([0])), FedAvg(rounds=1), model, 1, 1, seed=0)
    assert entry.upload_bytes < lossless.upload_bytes


def test_models_on_a_device_stay_there_and_take_the_same_bytes():
    class Echo(Scripted):
        def ask(self, method, round, model, sent=None):
            yield Update(model, samples=1, client=0)

    here = small_model(WEIGHTS)
    there = here.beside(torch.zeros(1))
    for precision in ("fp32", "fp16"):
        [(one, a, _)] = run_rounds(Wired(Echo(), precision), FedAvg(rounds=1), here, 1, 1, seed=0)
        [(two, b, _)] = run_rounds(Wired(Echo(), precision), FedAvg(rounds=1), there, 1, 1, seed=0)
        assert isinstance(two.weights, torch.Tensor) and two.same_as(one)
        assert (a.upload_bytes, a.download_bytes) == (b.upload_bytes, b.download_bytes)


def test_scores_that_travel_are_counted():
    class Scored(Scripted):
        def ask(self, method, round, model, sent=None):
            yield Update(model, samples=1, client=0, scores=WEIGHTS[::-1].copy())

    [(_, plain, _)] = run_rounds(Wired(Scripted([0])), FedAvg(rounds=1), small_model(WEIGHTS), 1, 1, seed=0)
    for precision in ("fp32", "int8"):
        [(_, entry, _)] = run_rounds(Wired(Scored(), precision), FedAvg(rounds=1), small_model(WEIGHTS), 1, 1, seed=0)
        bare = len(encode(small_model(WEIGHTS), np.ones(40, np.bool_), precision, layout_known=True))
        assert bare + 40 * 3 < entry.upload_bytes < bare + 40 * 5 and entry.upload_params == 80
    assert plain.upload_params == 40


def test_a_diverged_client_is_refused_by_name_and_not_by_the_encoder():
    class Diverged(Scripted):
        def ask(self, method, round, model, sent=None):
            yield from super().ask(method, round, model)
            yield Update(small_model([np.nan] * 40), samples=1, client=9)
            yield Update(small_model([1, 2]), samples=1, client=8)  # and one of another network

    [(_, entry, _)] = run_rounds(Wired(Diverged([0]), "int8"), FedAvg(rounds=1), small_model(WEIGHTS), 1, 1, seed=0)
    assert entry.clients == 1
    assert "NaN" in entry.refused["client 9"] and "layout" in entry.refused["client 8"]


def test_a_version_that_the_server_does_not_have_gets_everything():
    known_masks = KnownMasks({0: 7}, {})
    assert known_masks.mask(7, 40) is None and known_masks.mask(None, 40) is None
    wired = Wired(Scripted([0]), known_masks=known_masks)
    [(_, entry, _)] = run_rounds(wired, FedAvg(rounds=1), small_model(WEIGHTS), 1, 1, seed=0)
    assert entry.download_bytes == len(encode(small_model(WEIGHTS)))


def test_memory_keeps_a_mask_as_long_as_a_client_has_it():
    known_masks = KnownMasks()
    masks = {version: np.arange(11) % version == 0 for version in (1, 2, 3)}
    known_masks.sent(0, 1, masks[1])
    known_masks.sent(1, 1, masks[1])
    known_masks.sent(0, 2, masks[2])
    assert sorted(known_masks.bitmaps) == [1, 2]
    known_masks.sent(1, 3, masks[3])
    assert sorted(known_masks.bitmaps) == [2, 3]
    assert all(np.array_equal(known_masks.mask(version, 11), masks[version]) for version in (2, 3))
    assert known_masks.mask(2, 99) is None


def test_memory_survives_in_the_checkpoint(tmp_path):
    known_masks = KnownMasks()
    known_masks.sent(3, 1, np.array([True, False]))
    known_masks.sent(5, 2, np.array([False, False]))
    Checkpoint(2, small_model([1, 2]), {}, {3: {"optimizer.momentum": np.zeros(2, np.float32)}}, known_masks).save(
        tmp_path / "c.fsz"
    )
    back = Checkpoint.load(tmp_path / "c.fsz")
    assert back.known_masks.seen == {3: 1, 5: 2} and list(back.clients) == [3]
    assert back.known_masks.mask(1, 2).tolist() == [True, False]


def test_a_model_is_no_checkpoint(tmp_path):
    save(tmp_path / "model.fsz", small_model([1, 2]), {"round": 3})
    with pytest.raises(RunError, match=r"model\.fsz holds a model, but not the state of a run"):
        Checkpoint.load(tmp_path / "model.fsz")


def test_stopped_and_resumed_the_bytes_are_those_of_a_run_never_stopped(tmp_path):
    config = RunConfig(rounds=6, epochs=1, clients=6, participation=0.5)
    whole = run(config, tmp_path / "whole")

    def interrupt(entry):
        if entry.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut", on_round=interrupt)
    resumed = run(config, tmp_path / "cut", resume=True)
    assert [(e.download_bytes, e.upload_bytes) for e in resumed.history] == [
        (e.download_bytes, e.upload_bytes) for e in whole.history
    ]


def test_settings():
    assert RunConfig(wire_precision="fp16").wire_precision == "fp16"
    with pytest.raises(ConfigError, match="wire_precision needs the wire"):
        RunConfig(wire=False, wire_precision="int8")
