"""A question and its answer as Flower carries them: one record of plain fields, whose models are blobs of our codec.

A record of bytes is one object on Flower's wire; an `Array` would be three, each with requests of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from flwr.app import ConfigRecord, RecordDict

from ...errors import WireError

RECORD = "fedsparsify"
KINDS = {"int": int, "float": float, "bytes": bytes, "str": str}


class Fields:
    """A dataclass of plain fields that travels as a record."""

    def content(self) -> RecordDict:
        """What a message carries."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return RecordDict({RECORD: ConfigRecord(values)})

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """The fields of a message, each seen to be of its kind: whoever sent it may be anyone."""
        record = content.config_records.get(RECORD)
        if record is None:
            raise WireError(f"the message has no record {RECORD!r}")
        found: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]
            value = record.get(field.name)
            if type(value) is not KINDS[str(field.type)]:
                raise WireError(f"{field.name!r} must be of kind {field.type}. Received: {type(value).__name__}")
            found[field.name] = value
        return cls(**found)


@dataclass(frozen=True)
class Question(Fields):
    """Round `round` for client `client`, of this model."""

    round: int
    client: int
    model: bytes


@dataclass(frozen=True)
class Answer(Fields):
    """What a client answers with; only `lacks` where it does not have the mask that the question refers to."""

    round: int
    client: int
    samples: int = 0
    loss: float = 0.0
    seconds: float = 0.0  # that the client took
    model: bytes = b""
    scores: bytes = b""
    lacks: bytes = b""


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
class Parcel(Fields):
    """A model for somebody else's training loop: what it needs beside the loop's own records."""

    round: int
    model: bytes
    trainable: int  # how many entries its mask has
    method: str  # its name and settings, as JSON
    dtypes: str  # of arrays that are not float32, as JSON
