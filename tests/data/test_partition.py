from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsparsify import partition
from fedsparsify.data import holdings
from fedsparsify.errors import ConfigError, DataError

BALANCED = np.repeat(np.arange(10), 200)


def classes_of(part, labels=BALANCED):
    return sorted(set(labels[part].tolist()))


@pytest.mark.parametrize("clients", [10, 100])
def test_fashion_mnist_classes_2_pairs_neighbours(clients):
    parts = partition(BALANCED, clients, "classes:2")
    per_pair = clients // 5
    for client, part in enumerate(parts):
        pair = client // per_pair
        assert classes_of(part) == [2 * pair, 2 * pair + 1]
        assert part.size == 2000 // clients


def test_cifar10_classes_5_makes_two_halves():
    parts = partition(BALANCED, 10, "classes:5")
    assert [classes_of(part) for part in parts] == [[0, 1, 2, 3, 4]] * 5 + [[5, 6, 7, 8, 9]] * 5


def test_classes_on_a_tiny_literal():
    assert [part.tolist() for part in partition([0, 1, 0, 1], 2, "classes:1")] == [[0, 2], [1, 3]]
    assert [part.tolist() for part in partition([0, 1, 0, 1], 2, "classes:2")] == [[0, 1], [2, 3]]


def test_the_last_clients_never_have_to_take_a_class_twice():
    labels = np.repeat([0, 1, 2], 10)
    assert [classes_of(part, labels) for part in partition(labels, 3, "classes:2")] == [[0, 1], [0, 2], [1, 2]]


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=30, max_size=120).map(np.array),
    clients=st.integers(1, 8),
    how=st.sampled_from(
        ["iid", "classes:2", "classes:3", "classes:5", "dirichlet:0.5", "dirichlet-equal:0.1", "dirichlet-equal:9"]
    ),
    seed=st.integers(0, 5),
)
def test_a_partition_covers_everything_once_and_leaves_no_client_empty(labels, clients, how, seed):
    try:
        parts = partition(labels, clients, how, seed)
    except DataError:
        return
    assert len(parts) == clients
    assert all(part.size for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(labels.size))
    again = partition(labels, clients, how, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    if how.startswith("classes"):
        assert all(len(classes_of(part, labels)) == int(how[-1]) for part in parts)
    if how.startswith(("iid", "dirichlet-equal")):
        assert max(part.size for part in parts) - min(part.size for part in parts) <= 1


def test_iid_parts_are_equal_and_shuffled():
    parts = partition(BALANCED, 10, "iid", seed=3)
    assert {part.size for part in parts} == {200}
    assert all(len(classes_of(part)) == 10 for part in parts)


def test_dirichlet_skews_more_for_smaller_alpha():
    def spread(how):
        return np.std(holdings(BALANCED, partition(BALANCED, 10, how, 1), 10))

    assert spread("dirichlet:0.1") > 2 * spread("dirichlet:10")


def test_dirichlet_of_equal_sizes():
    def held(alpha):
        return holdings(BALANCED, partition(BALANCED, 20, f"dirichlet-equal:{alpha}", 1), 10)

    assert {*held(0.1).sum(1)} == {*held(1000).sum(1)} == {100}
    assert np.abs(held(1000)[:-1] - 10).max() < 15  # near IID; the last client takes what is left
    assert (held(0.1) == 0).mean() > 0.5
    literal = partition([0, 0, 0, 1, 1, 1], 2, "dirichlet-equal:1e-9", seed=0)  # one class per client
    assert sorted(classes_of(part, np.repeat([0, 1], 3)) for part in literal) == [[0], [1]]


@pytest.mark.parametrize(
    ("clients", "how", "kind", "says"),
    [
        (10, "classes:11", DataError, "more classes a client than the 10"),
        (2, "classes:2", DataError, "covers 4 of 10 classes"),
        (3000, "iid", DataError, "empty"),
        (1999, "dirichlet:0.01", DataError, "empty"),
        (0, "iid", ConfigError, "at least 1"),
        (10, "clases:2", ConfigError, "Did you mean 'classes'?"),
        (10, "classes", ConfigError, "form classes:K"),
        (10, "classes:two", ConfigError, "form classes:K"),
        (10, "classes:2.5", ConfigError, "form classes:K"),
        (10, "dirichlet:-1", ConfigError, "positive"),
        (10, "dirichlet:inf", ConfigError, "positive"),
        (10, "dirichlet-equal:0", ConfigError, "dirichlet-equal:ALPHA takes a positive"),
        (10, "dirichlet-equals:1", ConfigError, "Did you mean 'dirichlet-equal'?"),
        (10, "iid:3", ConfigError, "form iid"),
    ],
)
def test_refusals(clients, how, kind, says):
    with pytest.raises(kind) as caught:
        partition(BALANCED, clients, how)
    assert says in str(caught.value)


def test_a_column_of_client_ids():
    parts = partition([0.5, 1.5, 2.5, 3.5], 2, "column", column=["b", "a", "b", "a"])
    assert [part.tolist() for part in parts] == [[1, 3], [0, 2]]
    with pytest.raises(ConfigError, match=r"clients must be 2, the number of ids.*Received: 10"):
        partition([0] * 10, 10, "column", column=[0, 1] * 5)
    with pytest.raises(DataError, match=r"needs a column of client ids.*'client' of an .npz"):
        partition([0, 1], 2, "column")


def test_a_function_of_a_users_own(elsewhere):
    (elsewhere / "own_splits.py").write_text(
        "import numpy as np\n"
        "def lists(y, clients, seed): return [[i for i in range(len(y)) if i % clients == c] for c in range(clients)]\n"
        "def holders(y, clients, seed): return np.arange(len(y)) % clients\n"
        "def twice(y, clients, seed): return [[0, 1], [1, 2]]\n"
        "def empty(y, clients, seed): return [[0, 1], []]\n"
        "def beyond(y, clients, seed): return [[0, 9], [1]]\n"
        "def other(y, clients, seed): return [[0], [1], [2]]\n"
        "def none(y, clients, seed): return None\n"
        "def fails(y, clients, seed): raise KeyError('who')\n"
        "def strange(y, clients, seed): return np.full(len(y), 7)\n"
    )
    for name in ("lists", "holders"):
        parts = partition([0.1, 0.2, 0.3, 0.4], 2, f"own_splits:{name}")
        assert [part.tolist() for part in parts] == [[0, 2], [1, 3]]
    for name, says in {
        "twice": "gives a sample to two clients, or twice to one: sample 1",
        "empty": "leaves client 1 without samples",
        "beyond": "samples are 0 … 3. Received: 0 … 9",
        "other": "Received: 3 entries for 2 clients",
        "none": "Received: NoneType",
        "strange": "clients are 0 … 1. Received: 7 … 7",
    }.items():
        with pytest.raises(DataError, match=says):
            partition([0, 1, 0, 1], 2, f"own_splits:{name}")
    with pytest.raises(ConfigError, match=r"split 'own_splits:fails': .*raised KeyError: 'who'"):
        partition([0, 1, 0, 1], 2, "own_splits:fails")


def test_classes_are_needed_to_divide_by_them():
    for labels in ([0.5, 1.5, 2.5], [[0, 1], [1, 0], [1, 1]]):
        for how in ("classes:1", "dirichlet:1"):
            with pytest.raises(DataError, match=r"needs one class per sample.*iid, column"):
                partition(labels, 2, how)
        assert sum(part.size for part in partition(labels, 2, "iid")) == 3
    assert [part.tolist() for part in partition([0.0, 1.0, 0.0], 2, "classes:1")] == [[0, 2], [1]]
