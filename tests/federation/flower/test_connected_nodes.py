"""Which node is which client. Nodes are named by their numbers, with the client that each asks for; None is any."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from fake import FakeGrid

from fedsparsify.federation.flower.connected_nodes import ConnectedNodes


@pytest.fixture
def joined(tmp_path):
    """Client → node after nodes joined in several steps."""

    def play(clients: int, *steps: dict[int, int | None], settled: bool = False) -> dict[int, int]:
        grid = FakeGrid(tmp_path, {}, 0)
        nodes = ConnectedNodes(grid, clients, lambda *_: None, lambda *_: None)  # type: ignore[arg-type]
        for step in steps:
            grid.clients |= step
            grid.connected |= step.keys()
            nodes.present()
            nodes.present()
            if settled:
                nodes.settle()
        return nodes.present()

    return play


def test_numbers_are_given_in_order(joined):
    assert joined(3, {7: None}, {8: None}, {9: None}) == {0: 7, 1: 8, 2: 9}


def test_a_number_that_was_asked_for_goes_first(joined):
    assert joined(3, {7: None}, {8: 0}, {9: 1}) == {0: 8, 1: 9, 2: 7}


def test_two_that_ask_for_one_number_and_a_node_too_many(joined, caplog):
    assert joined(2, {7: 0}, {8: 0}) == {0: 7}
    assert "node 8 is left out: client 0 is connected already, as node 7" in caplog.text
    assert joined(2, {7: None}, {8: 1}, {9: None}) == {0: 7, 1: 8}
    assert "node 9 is left out: it asks for any number, but the run has the clients 0 … 1; 2 joined" in caplog.text


def test_after_the_first_round_nobody_moves(joined, caplog):
    assert joined(3, {7: None}, {8: 0}, settled=True) == {0: 7}
    assert "client 0 is connected already" in caplog.text
