"""The value itself."""

from __future__ import annotations

from .base import Operation


class Identity(Operation):
    """Vanishes from a graph."""

    name, vanishes = "identity", True
    pointwise = True
    modules = ("Identity",)


OPERATION = Identity()
