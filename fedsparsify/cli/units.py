"""Durations and ratios as a person reads them."""

from __future__ import annotations

EQUAL = 1.005  # a ratio below this is none


def duration(seconds: float) -> str:
    """A time with two or three digits: 31 s, 1.2 s, 140 ms, 0.35 ms."""
    if seconds >= 1:
        return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.2g} ms"


def times(ratio: float) -> str:
    """A ratio with three digits: 0.87, 4.17, 18.8, 1,057."""
    return f"{ratio:,.{0 if ratio >= 100 else 1 if ratio >= 10 else 2}f}"


def smaller(size: int, other: int) -> str:
    """How a size compares with another: `21.3× smaller than`, `7.70× larger than` or `as large as`."""
    return _compared(size, other, "smaller than", "larger than", "as large as")


def fewer(count: int, other: int) -> str:
    """How a number compares with another: `4.30× fewer than`, `1.20× more than` or `as many as`."""
    return _compared(count, other, "fewer than", "more than", "as many as")


def _compared(value: int, other: int, less: str, more: str, same: str) -> str:
    ratio = max(value, other) / max(min(value, other), 1)
    if ratio < EQUAL:
        return same
    return f"{times(ratio)}× {less if value < other else more}"
