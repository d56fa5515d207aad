from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify import GradualSchedule, communication_cost
from fedsparsify.errors import ConfigError
from fedsparsify.schedule import ConstantSchedule, OneShotSchedule

SIZES = {"fc": (118_282, 118_282), "cnn": (1_610_314, 1_609_930), "vgg16": (14_782_884, 14_774_436)}


def test_literal_values_of_equation_1():
    schedule = GradualSchedule(0.8, rounds=5)
    assert [schedule(t) for t in range(1, 6)] == pytest.approx([0, 0.8 * (1 - 0.75**3), 0.7, 0.8 * (1 - 0.25**3), 0.8])


def test_frequency_holds_the_sparsity_between_purges_and_never_falls_below_the_first():
    schedule = GradualSchedule(0.9, rounds=10, every=4)
    values = [schedule(t) for t in range(1, 11)]
    assert values[:3] == [0, 0, 0]
    assert values[3] == values[6] > 0
    assert values[7] == values[8] > values[6]
    assert values[9] == 0.9  # 4 does not divide 10, and the last round purges all the same


def test_start_and_initial():
    schedule = GradualSchedule(0.9, rounds=10, initial=0.5, start=4)
    assert [schedule(t) for t in (1, 3, 4)] == [0.5] * 3
    assert 0.5 < schedule(5) < schedule(9) < schedule(10) == 0.9


def test_start_at_the_last_round_is_one_shot():
    assert [GradualSchedule(0.9, rounds=3, start=3)(t) for t in (1, 2, 3)] == [0, 0, 0.9]


def test_an_end_before_the_last_round():
    """Eq. 1 with round 4 in place of T; the rounds after it only tune."""
    for end in (4, 0.5):
        schedule = GradualSchedule(0.8, rounds=8, end=end)
        assert [schedule(t) for t in range(1, 9)] == pytest.approx(
            [0, 0.8 * (1 - (2 / 3) ** 3), 0.8 * (1 - (1 / 3) ** 3), 0.8, 0.8, 0.8, 0.8, 0.8]
        )
        assert schedule(4) == 0.8


def test_the_purge_at_the_end_reaches_the_target_whatever_the_frequency():
    schedule = GradualSchedule(0.9, rounds=10, every=4, end=7)
    values = [schedule(t) for t in range(1, 11)]
    assert values[:3] == [0, 0, 0]
    assert values[3:6] == pytest.approx([0.9 * (1 - 0.5**3)] * 3)
    assert values[6:] == [0.9] * 4


def test_an_end_as_a_fraction_is_the_nearest_round():
    ends = [(0.75, 200), (0.75, 10), (0.7, 10), (0.01, 10), (1.0, 10), (1, 10), (2, 10), (10, 10)]
    assert [GradualSchedule(0.9, rounds, end=end).last_purge for end, rounds in ends] == [150, 8, 7, 1, 10, 10, 2, 10]


def test_other_schedules():
    assert [OneShotSchedule(0.9, 3)(t) for t in (1, 2, 3, 4)] == [0, 0, 0.9, 0.9]
    assert ConstantSchedule(0.4)(7) == 0.4


@given(
    final=st.floats(0, 0.999),
    rounds=st.integers(1, 300),
    every=st.integers(1, 40),
    exponent=st.floats(0.5, 12),
    data=st.data(),
)
def test_schedules_climb_from_initial_to_final(final, rounds, every, exponent, data):
    initial = data.draw(st.floats(0, final))
    last = data.draw(st.integers(1, rounds))
    start = data.draw(st.integers(1, last))
    schedule = GradualSchedule(final, rounds, initial, start, every, exponent, last if last > 1 else 1e-9)
    assert schedule(last) == final
    values = [schedule(t) for t in range(rounds + 1)]
    assert all(a <= b + 1e-12 for a, b in pairwise(values))
    assert values[-1] == final
    assert all(initial - 1e-12 <= value <= final + 1e-12 for value in values)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"final": 95}, "Did you mean 0.95?"),
        ({"final": 1.0}, "[0, 1)"),
        ({"final": -0.1}, "[0, 1)"),
        ({"final": float("nan")}, "[0, 1)"),
        ({"initial": 0.95}, "must not exceed"),
        ({"start": 11}, "t_0"),
        ({"start": 0}, "at least 1"),
        ({"every": 0}, "at least 1"),
        ({"rounds": 0}, "at least 1"),
        ({"exponent": 0}, "positive"),
        ({"end": 0}, "fraction of the rounds"),
        ({"end": -3}, "fraction of the rounds"),
        ({"end": 2.5}, "fraction of the rounds"),
        ({"end": 11}, "end 11, rounds 10"),
        ({"end": float("nan")}, "fraction of the rounds"),
        ({"end": float("inf")}, "fraction of the rounds"),
        ({"start": 6, "end": 0.5}, "end 0.5 (round 5 of 10)"),
    ],
)
def test_nonsense_is_refused(wrong, says):
    with pytest.raises(ConfigError, match="Received") as caught:
        GradualSchedule(**({"final": 0.9, "rounds": 10} | wrong))
    assert says in str(caught.value)


def test_every_cell_of_the_papers_tables(shared):
    tables = json.loads((shared / "paper" / "tables.json").read_text())
    cells = 0
    for environment in ("fashion_mnist_noniid_10", "cifar10_noniid_10", "cifar100_noniid_10"):
        table = tables[environment]
        total, trainable = SIZES[table["model"]]
        for row, cell in table.items():
            if not isinstance(cell, dict):
                continue
            schedule = ConstantSchedule(0) if row == "dense" else GradualSchedule(float(row), table["rounds"])
            cost = communication_cost(total, trainable, schedule, table["rounds"], 10)
            if row != "dense":
                assert cost.final_params == cell["params"], (environment, row)
                cells += 1
            if "cc_mm" in cell:
                assert cost.paper // 10**6 == cell["cc_mm"], (environment, row)
            else:
                assert cost.paper * 32 // 10**6 == cell["cc_mbit"], (environment, row)
            cells += 1
    assert cells == 13 + 16


def test_two_cells_written_out_so_that_they_hold_without_the_paper_at_hand():
    cost = communication_cost(118_282, 118_282, GradualSchedule(0.9, 200), 200, 10)
    assert (cost.paper // 10**6, cost.final_params) == (155, 11_829)
    assert cost.honest / 1e6 == pytest.approx(156.4, abs=0.05)
    cost = communication_cost(14_782_884, 14_774_436, GradualSchedule(0.99, 100), 100, 10)
    assert (cost.paper * 32 // 10**6, cost.final_params) == (251_067, 156_193)
