"""Every method by name. `METHODS` is a plain dict: add a class here, or name your own as `module:Class`."""

from __future__ import annotations

from ..errors import ConfigError
from ..plugins import load_named
from .at_initialisation import AtInitialisation
from .base import Averaging, Merged, Method, tally, tally_scored
from .checked import Blaming, ask_client, begun, check_fits, check_unchanging, cohort_of, merged, target_of
from .composed import FedAdagrad, FedAdam, FedAvgM, FedDyn, FedYogi, Scaffold
from .context import ClientContext, ServerContext
from .fedavg import FedAvg, FedAvgMFL
from .feddst import FedDST
from .fedprox import FedProx
from .fedrts import FedRTS
from .fedsparsify_global import FedSparsifyGlobal
from .fedsparsify_local import FedSparsifyLocal
from .grasp import Grasp
from .oneshot import OneShot, OneShotFT
from .prunefl import PruneFL
from .purging import Gradual, Purging, Scheduled, Selecting
from .random import Random
from .requests import Client, Fit, Request, Score, Update, run_client, until_diverged
from .snip import Snip
from .sparsyfed import SparsyFed
from .ssfl import SSFL
from .topk import TopK

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavg-mfl": FedAvgMFL,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "feddyn": FedDyn,
    "scaffold": Scaffold,
    "fedsparsify-global": FedSparsifyGlobal,
    "fedsparsify-local": FedSparsifyLocal,
    "random": Random,
    "oneshot": OneShot,
    "oneshot-ft": OneShotFT,
    "snip": Snip,
    "grasp": Grasp,
    "prunefl": PruneFL,
    "feddst": FedDST,
    "ssfl": SSFL,
    "topk": TopK,
    "sparsyfed": SparsyFed,
    "fedrts": FedRTS,
}


def method_class(name: str) -> type[Method]:
    """The class of a method of ours, or of `module:Class`."""
    found = load_named(name, METHODS, "method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"method {name!r} must name a subclass of fedsparsify.methods.Method. Received: {found!r}")
    if not_made := [field for field in vars(found).values() if "help" in getattr(field, "metadata", ())]:
        raise ConfigError(
            f"method {name!r} has {len(not_made)} options and is no dataclass. "
            f"Put @dataclass(frozen=True, kw_only=True) above its class."
        )
    return found


__all__ = [
    "METHODS",
    "SSFL",
    "AtInitialisation",
    "Averaging",
    "Blaming",
    "Client",
    "ClientContext",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedAvgMFL",
    "FedDST",
    "FedDyn",
    "FedProx",
    "FedRTS",
    "FedSparsifyGlobal",
    "FedSparsifyLocal",
    "FedYogi",
    "Fit",
    "Gradual",
    "Grasp",
    "Merged",
    "Method",
    "OneShot",
    "OneShotFT",
    "PruneFL",
    "Purging",
    "Random",
    "Request",
    "Scaffold",
    "Scheduled",
    "Score",
    "Selecting",
    "ServerContext",
    "Snip",
    "SparsyFed",
    "TopK",
    "Update",
    "ask_client",
    "begun",
    "check_fits",
    "check_unchanging",
    "cohort_of",
    "merged",
    "method_class",
    "run_client",
    "tally",
    "tally_scored",
    "target_of",
    "until_diverged",
]
