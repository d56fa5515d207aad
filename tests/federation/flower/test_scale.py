"""Many clients in a round: the server holds one sum and a few answers, whatever their number."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import pytest

from fedsparsify import RunConfig, load_dataset
from fedsparsify.federation.flower import server
from fedsparsify.federation.flower.serve_settings import ServeSettings
from fedsparsify.federation.known_masks import KnownMasks
from fedsparsify.federation.rounds import run_rounds

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
import server_scale


@pytest.mark.parametrize("together", [1, 3])
def test_answers_are_dropped_as_they_are_added(monkeypatch, together):
    monkeypatch.setattr(server_scale, "HIDDEN", 8)
    network = RunConfig(network="server_scale:perceptron", clients=30, rounds=2, data="digits")
    alive: weakref.WeakSet = weakref.WeakSet()
    most = []

    class Clients(server_scale.Clients):
        def pull_messages(self, ids):
            found = super().pull_messages(ids)
            alive.update(found)
            most.append(len(alive))
            return found

    federation = server.Networked(network, load_dataset("digits"), Clients(30), KnownMasks(), ServeSettings())
    model = federation.initial()
    monkeypatch.setattr(server, "PULLED_AT_ONCE", together * (4 * model.layout.total + 1))
    rounds = [played.entry for played in run_rounds(federation, network.method, model, 1, 2, 0)]
    assert [entry.clients for entry in rounds] == [30, 30] and not rounds[1].refused
    assert len(most) > 20 and max(most[2:]) <= 2 * together + 1  # those in hand, and those that come
