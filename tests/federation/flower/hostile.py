"""A node whose own code is not ours: it trains as the others do, and sends something else, by the round.

`install` is for the `sitecustomize` of a node's processes. Each message is a new process, so that what the node
remembers of earlier rounds lies in files beside its masks.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsparsify.federation.flower.messages import Answer
from fedsparsify.federation.flower.node_store import NodeStore
from fedsparsify.model import SparseModel
from fedsparsify.wire.codec import decode, encode

ATTACKS = {  # round → what is sent in it. After the last three nothing mends a model that was ruined.
    1: "×10⁶",
    2: "sign flip ×20",
    3: "10¹² samples",
    4: "NaN weights",
    5: "NaN statistics",
    6: "negative variances",
    7: "stale model",
    8: "last answer again",
    9: "garbage",
    10: "×10⁶",
    11: "10¹² samples",
    12: "sign flip ×20",
}
NAMED = {  # attack → (field of the ledger that names the client, what it says)
    "×10⁶": ("bounded", "times as long as the median"),
    "sign flip ×20": ("bounded", "times as long as the median"),
    "10¹² samples": ("bounded", "it claims 1,000,000,000,000 samples; 400 are counted"),
    "NaN weights": ("refused", "of its weights are NaN or infinite"),
    "NaN statistics": ("refused", "of its weights are NaN or infinite"),
    "negative variances": ("refused", "its variance '2.running_var' is negative"),
    "stale model": ("bounded", "times as long as the median"),
    "last answer again": ("refused", "mask"),
    "garbage": ("refused", "blob"),
}


class Memory:
    """The model that the node was asked with, and files of earlier rounds."""

    def __init__(self) -> None:
        self.folder, self.model = Path(), None

    def watch(self) -> None:
        """Look at what the node receives from now on."""
        received = NodeStore.received

        def watched(store: NodeStore, *question: object) -> tuple[SparseModel | None, bytes]:
            model, lacks = received(store, *question)
            self.folder, self.model = store._folder, model
            return model, lacks

        NodeStore.received = watched

    def attacked(self, answer: Answer) -> Answer:
        """What the node sends instead of its honest answer."""
        if not answer.model:
            return answer
        first, last = self.folder / "first.npy", self.folder / f"answer-{answer.round - 1}"
        if not first.exists():
            np.save(first, self.model.host_weights)
        (self.folder / f"answer-{answer.round}").write_bytes(answer.model)
        trainable = self.model.layout.trainable
        after = decode(answer.model, self.model.host_mask, self.model.layout).host_weights.astype(np.float64)
        moved = after[:trainable] - self.model.host_weights[:trainable]
        match ATTACKS[answer.round]:
            case "×10⁶":
                after[:trainable] += 1e6 * moved
                return self._sent(answer, after)
            case "sign flip ×20":
                after[:trainable] -= 21 * moved
                return self._sent(answer, after)
            case "10¹² samples":
                after[:trainable] -= 4 * moved
                return replace(self._sent(answer, after), samples=10**12)
            case "NaN weights":
                after[: trainable // 2] = np.nan
                return self._sent(answer, after)
            case "NaN statistics":
                after[trainable:] = np.nan
                return self._sent(answer, after)
            case "negative variances":
                after[self.model.layout.slices["2.running_var"]] *= -1
                return self._sent(answer, after)
            case "stale model":
                return self._sent(answer, np.load(first))
            case "last answer again":
                return replace(answer, model=last.read_bytes())
        return replace(answer, model=os.urandom(5000))

    def _sent(self, answer: Answer, weights: np.ndarray) -> Answer:
        """The answer with other weights, under the mask of the question."""
        with np.errstate(invalid="ignore"):
            made = SparseModel.masked(self.model.layout, weights.astype(np.float32), self.model.host_mask)
        return replace(answer, model=encode(made, self.model.host_mask, layout_known=True))


def install() -> None:
    """Change every answer of this process."""
    memory, content = Memory(), Answer.content
    memory.watch()
    Answer.content = lambda answer: content(memory.attacked(answer))
