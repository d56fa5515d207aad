"""fedsparsify: train extremely sparse neural networks on data that never leaves its owners."""

from typing import TYPE_CHECKING, Any

from . import errors
from .average import majority, weighted
from .config import RunConfig
from .data import partition
from .methods import METHODS
from .model import SparseModel
from .schedule import GradualSchedule, communication_cost
from .scores import keep_top
from .wire.artefact import load, save

if TYPE_CHECKING:
    from .federation.run import Result, run

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "GradualSchedule",
    "Result",
    "RunConfig",
    "SparseModel",
    "communication_cost",
    "errors",
    "keep_top",
    "load",
    "majority",
    "partition",
    "run",
    "save",
    "weighted",
]


def __getattr__(name: str) -> Any:
    """`run` and `Result` need torch; everything else works with numpy alone."""
    if name in ("Result", "run"):
        from .federation import run as module

        return getattr(module, name)
    raise AttributeError(f"module 'fedsparsify' has no attribute {name!r}")
