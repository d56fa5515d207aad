"""Which replies of nodes can be used: one node's failure never ends a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite

from flwr.app import Message

from ...errors import WireError
from ..client_views import ClientEvaluation, client_views
from .messages import RECORD, Answer


def lacks_mask(reply: Message) -> bool:
    """Whether a node says that it does not have the mask that its question refers to."""
    if reply.has_error() or RECORD not in reply.content.config_records:
        return False
    try:
        return bool(Answer.read(reply.content).lacks)
    except WireError:
        return False


def from_mod(reply: Message) -> bool:
    """Whether `sparse_mod` made this reply."""
    return not reply.has_error() and RECORD in reply.content.config_records


def averageable(replies: Sequence[Message], weight: str) -> tuple[list[Message], list[tuple[int, str]]]:
    """The replies whose metrics can be averaged with each other, and why the others cannot: (node, reason).

    Flower stops a run where the metrics of two nodes have different names; here those that most nodes have count.
    """
    good: list[tuple[Message, object]] = []
    bad: list[tuple[int, str]] = []
    for reply in replies:
        reason, shape = _fault_and_shape(reply, weight)
        if reason:
            bad.append((reply.metadata.src_node_id, reason))
        else:
            good.append((reply, shape))
    usual = Counter(shape for _, shape in good).most_common(1)
    for reply, shape in good:
        if shape != usual[0][0]:
            bad.append((reply.metadata.src_node_id, "its metrics have other names or lengths than those of most nodes"))
    return [reply for reply, shape in good if shape == usual[0][0]], bad


def spread(replies: Sequence[Message], weight: str) -> dict[str, float]:
    """Per metric that is a number: `-worst`, that of the client for which the model is worst, and `-spread`."""
    seen: dict[int, ClientEvaluation] = {}
    for reply in replies:
        [metrics] = reply.content.metric_records.values()
        numbers = {name: float(value) for name, value in metrics.items() if not isinstance(value, list)}
        seen[reply.metadata.src_node_id] = ClientEvaluation(1, {n: v for n, v in numbers.items() if n != weight})
    views = client_views(seen)
    return {f"{name}-{key}": view[key] for name, view in views.items() for key in ("worst", "spread")}


def _fault_and_shape(reply: Message, weight: str) -> tuple[str, object]:
    """What is wrong with a reply's metrics, and the names and lengths of them."""
    if lacks_mask(reply):
        return "it lacks a mask, though it was sent the whole model", None
    records = reply.content.metric_records
    if len(records) != 1:
        return f"it sent {len(records)} records of metrics, where one is expected", None
    [(name, metrics)] = records.items()
    value = metrics.get(weight)
    if isinstance(value, list) or value is None or not isfinite(value) or value <= 0:
        return f"{weight!r} in its metrics must be a number above 0. Received: {value}", None
    lengths = {key: len(found) if isinstance(found, list) else -1 for key, found in metrics.items()}
    return "", (name, frozenset(lengths.items()))
