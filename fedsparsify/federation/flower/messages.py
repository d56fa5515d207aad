"""Questions and answers as Flower carries them: plain fields, and a model as bytes of our codec.

A record of bytes is one object on Flower's wire; an `Array` would be three, each with requests of its own. The model
has its own record: Flower stores equal objects once, so that a model for ten clients is uploaded once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Self

from flwr.app import ConfigRecord, RecordDict

from ...errors import WireError
from ...model import Layout

MOST_METRICS, MOST_NAME = 100, 100
MOST_SAMPLES = 1 << 40
SPARE_BYTES = 1 << 20  # names and headers beside a model's values
RECORD, MODEL = "fedsparsify", "fedsparsify-model"
KINDS = {"int": int, "float": float, "bytes": bytes, "str": str}


class Fields:
    """A dataclass of plain fields that travels as a record."""

    def content(self) -> RecordDict:
        """What a message carries. Empty fields are left out: Flower's `message_size_mod` refuses them."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        values = {name: value for name, value in values.items() if value not in (b"", "")}
        content = RecordDict()
        if "model" in values:
            content[MODEL] = ConfigRecord({"model": values.pop("model")})
        content[RECORD] = ConfigRecord(values)
        return content

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """The fields of a message, each checked for its type: the sender is not trusted."""
        records = content.config_records
        if RECORD not in records:
            raise WireError(f"the message has no record {RECORD!r}")
        values = dict(records[RECORD]) | dict(records.get(MODEL, {}))
        found: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]
            kind = KINDS[str(field.type)]
            value = values.get(field.name, kind() if kind in (bytes, str) else None)
            if type(value) is not kind:
                raise WireError(f"{field.name!r} must be of kind {field.type}. Received: {type(value).__name__}")
            found[field.name] = value
        return cls(**found)


@dataclass(frozen=True)
class Question(Fields):
    """Round `round` for client `client`, of this model. An answer counts for `seconds` from when it was asked."""

    round: int
    client: int
    model: bytes
    beside: bytes = b""  # what the method broadcasts, empty where the server does not have it yet
    seconds: float = 600.0


@dataclass(frozen=True)
class Answer(Fields):
    """What a client answers with; only `lacks` where it does not have the mask that the question refers to.

    With a `fault` it is to be left out, and this is why.
    """

    round: int
    client: int
    samples: int = 0
    loss: float = 0.0
    seconds: float = 0.0  # that the client took
    model: bytes = b""
    scores: bytes = b""
    beside: bytes = b""  # what the method uploads
    lacks: bytes = b""
    fault: str = ""


@dataclass(frozen=True)
class Evaluated(Fields):
    """What a client measured of a model on the samples that it holds out; or what it lacks, or why it did not."""

    round: int
    client: int
    samples: int = 0
    metrics: str = ""  # each by its name, as JSON
    lacks: bytes = b""
    fault: str = ""

    def evaluation(self) -> tuple[int, dict[str, float]]:
        """How many samples it was, and the metrics, checked: the sender is not trusted."""
        try:
            found = json.loads(self.metrics)
            metrics = {str(name): float(value) for name, value in found.items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise WireError(f"its metrics are not numbers by name: {error}") from error
        if len(metrics) > MOST_METRICS or max(map(len, metrics), default=0) > MOST_NAME:
            raise WireError(f"it sent {len(metrics):,} metrics; at most {MOST_METRICS} of short names are taken")
        if not 0 < self.samples < MOST_SAMPLES:
            raise WireError(f"it evaluated on {self.samples:,} samples")
        return self.samples, metrics


@dataclass(frozen=True)
class Hello(Fields):
    """Who a node is: the number of its client (-1: none yet), and the names of the masks it holds, eight bytes each."""

    client: int = -1
    masks: bytes = b""
    version: str = ""

    @property
    def names(self) -> set[bytes]:
        """The masks' names."""
        return {self.masks[i : i + 8] for i in range(0, len(self.masks), 8)}


@dataclass(frozen=True)
class ModQuestion(Fields):
    """A model for a user's own training loop: what `sparse_mod` needs besides the loop's records."""

    round: int
    model: bytes
    trainable: int  # how many entries its mask has
    method: str  # its name and settings, as JSON
    dtypes: str  # of the loop's arrays, in its order, as JSON
    arrays: str  # under which name the loop finds its arrays
    weight: str  # under which name it says how many samples it has


def most_bytes(layout: Layout) -> int:
    """The most that a client may send for a model; checked before anything is decoded."""
    return 5 * layout.total + SPARE_BYTES
