"""Name, colours and marker of each method, the same in every figure and on the page.

Colours are Okabe and Ito's, told apart by everyone, and three more that are as dark; a marker of its own tells methods
apart where colours do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..recipes import PAPER
from ..text import plain


@dataclass(frozen=True)
class Look:
    """How a method is named and drawn."""

    label: str
    colour: str
    dark: str  # the same hue on a dark background
    marker: str
    dense: bool = False


LOOKS = {
    "fedavg": Look("FedAvg", "#5F5F5F", "#B9BFC5", "s", dense=True),
    "fedavg-mfl": Look("FedAvg (MFL)", "#111111", "#F4F6F8", "d", dense=True),
    "fedprox": Look("FedProx", "#A9A9A9", "#828A92", "D", dense=True),
    "fedavgm": Look("FedAvgM", "#44546A", "#A3B4CC", "1", dense=True),
    "fedadam": Look("FedAdam", "#7F6000", "#D9B945", "2", dense=True),
    "fedyogi": Look("FedYogi", "#375623", "#93C07A", "3", dense=True),
    "fedadagrad": Look("FedAdagrad", "#833C0B", "#D28C5E", "4", dense=True),
    "feddyn": Look("FedDyn", "#7030A0", "#C08BE6", "+", dense=True),
    "scaffold": Look("SCAFFOLD", "#1F4E79", "#7FB2E5", "x", dense=True),
    "fedsparsify-global": Look("FedSparsify-Global", "#0072B2", "#4AA8E0", "o"),
    "fedsparsify-global+": Look("FedSparsify+", "#6B8E00", "#B5D33D", "8"),  # with the recipe plus
    "fedsparsify-local": Look("FedSparsify-Local", "#56B4E9", "#9AD7FA", "^"),
    "oneshot-ft": Look("OneShot w/ FineTuning", "#D55E00", "#F0803C", "v"),
    "oneshot": Look("OneShot", "#E69F00", "#F2B83A", "<"),
    "random": Look("Random", "#CC79A7", "#E39BC3", "P"),
    "snip": Look("SNIP", "#009E73", "#2CC79A", "X"),
    "grasp": Look("GraSP", "#7A5195", "#B48AD6", ">"),
    "prunefl": Look("PruneFL", "#8C510A", "#C98F4B", "h"),
    "feddst": Look("FedDST", "#B2182B", "#EC6672", "p"),
    "ssfl": Look("SSFL", "#3B6E22", "#8CC46C", "H"),
    "topk": Look("Top-K", "#8A6D3B", "#CDB37F", "|"),
    "sparsyfed": Look("SparsyFed", "#C2185B", "#F06A9B", "d"),
    "fedrts": Look("FedRTS", "#4B3F9E", "#9C90F0", "D"),
}
OTHERS = (("#332288", "#8F87DD"), ("#117733", "#5BC17C"), ("#882255", "#DD7BAF"), ("#2F8F80", "#6FD0C1"))
SEQUENCE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#8C510A")
SEQUENCE_DARK = ("#4AA8E0", "#F0803C", "#2CC79A", "#E39BC3", "#F2B83A", "#9AD7FA", "#C9CED3", "#C98F4B")


def label_of(method: str, recipe: str = PAPER) -> str:
    """The method's name as the paper writes it, with a + for the recipe plus; `module:Class` is called Class."""
    if recipe != PAPER:
        return look_of(method, recipe).label
    return LOOKS[method].label if method in LOOKS else plain(method.rpartition(":")[2] or method, 60)


def look_of(method: str, recipe: str = PAPER) -> Look:
    """The method's look. A user's method gets one by its name, the same in every figure."""
    if recipe != PAPER:
        mark = "+" if recipe == "plus" else f" ({plain(recipe, 60)})"
        return LOOKS.get(f"{method}{mark}") or replace(look_of(method), label=f"{label_of(method)}{mark}")
    if method in LOOKS:
        return LOOKS[method]
    return Look(label_of(method), *OTHERS[sum(method.encode("utf-8", "replace")) % len(OTHERS)], "*")


def layer_of(method: str) -> int:
    """Drawing order: the paper's own methods on top, dense ones below."""
    return 5 if method.startswith("fedsparsify") else 2 if look_of(method).dense else 3


def rank_of(method: str) -> tuple[int, str]:
    """Order in legends and tables."""
    return (list(LOOKS).index(method) if method in LOOKS else len(LOOKS)), method
