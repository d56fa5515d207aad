"""Freed memory is kept where glibc's malloc can be told so, and nothing fails where it cannot."""

from __future__ import annotations

import ctypes

import pytest

from fedsparsify.training import freed_memory
from fedsparsify.training.freed_memory import keep_freed_memory


def test_the_thresholds_are_set(monkeypatch):
    asked = []

    class Library:
        def __init__(self, _):
            self.mallopt = lambda name, value: asked.append((name, value))

    monkeypatch.setattr(freed_memory.ctypes, "CDLL", Library)
    keep_freed_memory()
    assert asked == [(-1, 1 << 30), (-3, 32 << 20)]


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_another_malloc_is_left_alone(monkeypatch, error):
    def fail(_: object) -> ctypes.CDLL:
        raise error

    monkeypatch.setattr(freed_memory.ctypes, "CDLL", fail)
    keep_freed_memory()
