"""Durations and ratios on the screen, and the progress of a measurement."""

from __future__ import annotations

import warnings

import pytest

from fedsparsify.cli.time_bar import time_bar
from fedsparsify.cli.units import duration, fewer, smaller, times
from fedsparsify.notices import Notice


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(31.4, "31 s"), (1.23, "1.2 s"), (0.1404, "140 ms"), (0.0142, "14 ms"), (0.0034, "3.4 ms"), (0.00035, "0.35 ms")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ratios() -> None:
    assert [times(ratio) for ratio in (0.874, 4.17, 18.75, 1056.5)] == ["0.87", "4.17", "18.8", "1,056"]
    assert smaller(100, 2130) == "21.3× smaller than"
    assert smaller(770, 100) == "7.70× larger than"
    assert smaller(1000, 1001) == smaller(0, 0) == "as large as"
    assert fewer(100, 430) == "4.30× fewer than"
    assert fewer(430, 100) == "4.30× more than"
    assert fewer(5, 5) == "as many as"


def test_a_measurement_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with time_bar("Timing a", 25) as show:
        for done in (4, 11, 12, 22, 26):
            show(done)
    assert capsys.readouterr().err.splitlines() == ["Timing a: 25 s…", "11 of 25 s", "22 of 25 s"]


def test_a_notice_is_shown_without_its_place() -> None:
    assert warnings.formatwarning("Slower.", Notice, "a.py", 3, "x = 1") == "Note: Slower.\n"  # type: ignore[arg-type]
    assert "a.py:3: UserWarning: Slower." in warnings.formatwarning("Slower.", UserWarning, "a.py", 3, "")  # type: ignore[arg-type]
