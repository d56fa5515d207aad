"""One look for each method, the same in every figure and on the page.

Colours are Okabe and Ito's, told apart by everyone, and three more that are as dark; a marker of its own tells methods
apart where colours do not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """How a method is named and drawn."""

    label: str
    colour: str
    marker: str
    dense: bool = False


LOOKS = {
    "fedavg": Look("FedAvg", "#4D4D4D", "s", dense=True),
    "fedavg-mfl": Look("FedAvg (MFL)", "#4D4D4D", "s", dense=True),
    "fedprox": Look("FedProx", "#9A9A9A", "D", dense=True),
    "fedsparsify-global": Look("FedSparsify-Global", "#0072B2", "o"),
    "fedsparsify-local": Look("FedSparsify-Local", "#56B4E9", "^"),
    "oneshot-ft": Look("OneShot w/ FineTuning", "#D55E00", "v"),
    "oneshot": Look("OneShot", "#E69F00", "<"),
    "random": Look("Random", "#CC79A7", "P"),
    "snip": Look("SNIP", "#009E73", "X"),
    "grasp": Look("GraSP", "#7A5195", ">"),
    "prunefl": Look("PruneFL", "#8C510A", "h"),
    "feddst": Look("FedDST", "#B2182B", "p"),
}
OTHERS = ("#332288", "#117733", "#882255", "#44AA99")  # methods of one's own, in the order they come
SEQUENCE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#8C510A")  # of other things


def label_of(method: str) -> str:
    """The method's name as the paper writes it; `module:Class` is called Class."""
    return LOOKS[method].label if method in LOOKS else method.rpartition(":")[2]


def look_of(method: str) -> Look:
    """The method's look; one that is not ours gets one by its name, the same in every figure."""
    if method in LOOKS:
        return LOOKS[method]
    return Look(label_of(method), OTHERS[sum(method.encode()) % len(OTHERS)], "*")


def rank_of(method: str) -> tuple[int, str]:
    """Place in legends and tables."""
    return (list(LOOKS).index(method) if method in LOOKS else len(LOOKS)), method
