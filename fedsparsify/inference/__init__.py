"""Run sparse models fast, with numpy and numba alone."""

from .engine import Engine

__all__ = ["Engine"]
