"""Run sparse models fast, with numpy alone."""

from .engine import Engine

__all__ = ["Engine"]
