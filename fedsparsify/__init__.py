"""fedsparsify: train extremely sparse neural networks on data that never leaves its owners.

    from fedsparsify import Engine, RunConfig, run

    result = run(RunConfig(data="digits", sparsity=0.95), out="runs/mine")    # needs torch
    logits = Engine("runs/mine/model.fsz").run(images)                        # needs numpy alone

| to | use |
|---|---|
| train | `RunConfig`, `run`, `Result`, `Entry` |
| read and divide data | `load_dataset`, `partition` |
| keep and run a model | `SparseModel`, `save`, `load`, `Engine` |
| write a method | `Method`, `option`, `Fit`, `Score`, `Update`, `METHODS` |
| build blocks of one | `GradualSchedule`, `keep_top`, `weighted`, `majority`, `communication_cost` |
| catch what goes wrong | `errors` |

`import fedsparsify` needs numpy alone. Each name is imported at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from . import errors

if TYPE_CHECKING:
    from .average import majority, weighted
    from .config import RunConfig
    from .data.load import load_dataset
    from .data.partition import partition
    from .federation.ledger import Entry
    from .federation.run import Result, run
    from .inference import Engine
    from .methods import METHODS, Fit, Method, Score, Update
    from .model import SparseModel
    from .options import option
    from .schedule import GradualSchedule, communication_cost
    from .scores import keep_top
    from .wire.artefact import load, save

__version__ = "0.2.0"

__all__ = [
    "METHODS",
    "Engine",
    "Entry",
    "Fit",
    "GradualSchedule",
    "Method",
    "Result",
    "RunConfig",
    "Score",
    "SparseModel",
    "Update",
    "communication_cost",
    "errors",
    "keep_top",
    "load",
    "load_dataset",
    "majority",
    "option",
    "partition",
    "run",
    "save",
    "weighted",
]

_HOMES = {
    "METHODS": "methods",
    "Engine": "inference",
    "Entry": "federation.ledger",
    "Fit": "methods",
    "GradualSchedule": "schedule",
    "Method": "methods",
    "Result": "federation.run",
    "RunConfig": "config",
    "Score": "methods",
    "SparseModel": "model",
    "Update": "methods",
    "communication_cost": "schedule",
    "keep_top": "scores",
    "load": "wire.artefact",
    "load_dataset": "data",
    "majority": "average",
    "option": "options",
    "partition": "data",
    "run": "federation.run",
    "save": "wire.artefact",
    "weighted": "average",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use: `run` and `Result` need torch, the others do not."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedsparsify' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
