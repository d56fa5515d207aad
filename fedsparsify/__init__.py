"""fedsparsify: train extremely sparse neural networks on data that never leaves its owners."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from .average import majority, weighted
    from .config import RunConfig
    from .data.partition import partition
    from .federation.run import Result, run
    from .inference import Engine
    from .methods import METHODS
    from .model import SparseModel
    from .schedule import GradualSchedule, communication_cost
    from .scores import keep_top
    from .wire.artefact import load, save

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Engine",
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

_HOMES = {
    "METHODS": "methods",
    "Engine": "inference",
    "GradualSchedule": "schedule",
    "Result": "federation.run",
    "RunConfig": "config",
    "SparseModel": "model",
    "communication_cost": "schedule",
    "keep_top": "scores",
    "load": "wire.artefact",
    "majority": "average",
    "partition": "data",
    "run": "federation.run",
    "save": "wire.artefact",
    "weighted": "average",
}


def __getattr__(name: str) -> Any:
    """Names are imported at their first use: inference needs little, `run` and `Result` need torch."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedsparsify' has no attribute {name!r}")
