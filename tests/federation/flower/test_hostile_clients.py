"""Hostile nodes in a served run: named, held within bounds, and the run goes on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake import play

from fedsparsify import RunConfig, load_dataset
from fedsparsify.federation.simulated import Simulated
from fedsparsify.model import SparseModel
from fedsparsify.wire.codec import decode, encode

CONFIG = {"method": "fedavg", "rounds": 2, "epochs": 1, "clients": 5, "max_samples": 400}


def hostile(kinds):
    """What comes back: `kinds` says by client how the honest answer is changed."""
    start = Simulated(RunConfig(**CONFIG), load_dataset("digits")).initial()

    def moved(blob, factor):
        model = decode(blob, start.mask, start.layout)
        return encode(SparseModel(model.layout, np.float32(factor) * model.weights, model.mask), start.mask)

    def behave(question, work):
        answer = work()
        kind = kinds.get(question.client)
        if kind == "long":
            answer = replace(answer, model=moved(answer.model, 1e6))
        if kind == "flip":
            answer = replace(answer, model=moved(answer.model, -20))
        if kind == "claim":
            answer = replace(answer, samples=10**12, model=moved(answer.model, -1))
        if kind == "boast":
            answer = replace(answer, samples=2**62)
        if kind == "loss":
            answer = replace(answer, loss=float("nan"))
        return [answer]

    return behave


@pytest.mark.parametrize("merge", ["mean", "geometric-median"])
def test_hostile_nodes_are_bounded_and_named(tmp_path, merge):
    kinds = {0: "long", 1: "boast", 2: "loss"} if merge == "mean" else {0: "flip", 1: "claim"}
    honest, _ = play(tmp_path / "honest", RunConfig(**CONFIG, merge=merge))
    result, _ = play(tmp_path / "hostile", RunConfig(**CONFIG, merge=merge), hostile(kinds))
    assert len(result.history) == 2 and result.model.finite
    for entry in result.history:
        assert "times as long as the median" in entry.bounded["client 0"]
        if merge == "mean":
            assert "it claims 4,611,686,018,427,387,904 samples" in entry.refused["client 1"]
            assert entry.updates["loss"][1] is None and np.isfinite(entry.train_loss)
        else:
            assert "it claims 1,000,000,000,000 samples; 400 are counted" in entry.bounded["client 1"]
            assert min(entry.updates["cosine"][2:]) > max(entry.updates["cosine"][:2])
    if merge != "mean":
        assert result.history[-1].accuracy > honest.history[-1].accuracy - 0.25
