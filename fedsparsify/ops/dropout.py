"""Dropout, which does nothing where a network evaluates."""

from __future__ import annotations

from typing import Any

from .base import Operation, Traced, Untraceable


class Dropout(Operation):
    """Vanishes from a graph."""

    name, vanishes = "dropout", True
    pointwise = True
    modules, functions = ("Dropout", "Dropout1d", "Dropout2d", "AlphaDropout"), {"dropout": "read_call"}

    def read_call(self, p: float = 0.5, training: Any = True, inplace: bool = False, **more: Any) -> Traced:
        """What a function or method does, by its arguments after the first; torch.dropout says `train`."""
        if more.get("train", training):
            raise Untraceable("a dropout that is on even when the network evaluates; pass training=self.training")
        return Traced()


OPERATION = Dropout()
