"""A federation whose models travel as bytes: clients train what was decoded, and what they upload is decoded again.

In: any other federation. Out: the same answers after encoding and decoding, with their sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from .. import arrays
from ..errors import WireError
from ..methods import Method, Update
from ..model import Floats, Layout, Mask, SparseModel, TensorSpec
from ..state import State, layout_of, mask_of, of_model
from ..state import as_model as carried
from ..wire.codec import Encoder, decode, encode
from ..wire.values import Precision
from .known_masks import KnownMasks
from .rounds import Evaluated, Federation


class Wired:
    """Any federation, with models sent in the wire format. Every update says its bytes down and up."""

    def __init__(self, inner: Federation, precision: Precision = "fp32", known_masks: KnownMasks | None = None) -> None:
        self._inner, self._precision = inner, precision
        self.known_masks = known_masks or KnownMasks()

    def ask(self, method: Method, round: int, model: SparseModel, sent: State | None = None) -> Iterator[Update]:
        """The clients' answers as the server decodes them."""
        beside = len(encode_state(sent, model)) if sent else 0
        downloads: dict[int | None, Future[int]] = {}  # clients that saw the same mask last are sent the same blob
        mask = arrays.to_numpy(model.mask)

        def download(known: Mask | None) -> int:
            return encoder.result().size(known, layout_known=known is not None)

        def upload(asked: tuple[Update, Future[int]]) -> tuple[Update, Future[int]]:
            update, down = asked
            known = mask if update.model.layout == model.layout else None
            size, decoded = self._received(self._encoder(update.model), known, update.model)
            size += 0 if update.scores is None else len(encode(as_model(update.scores)))
            size += len(encode_state(update.sent, model)) if update.sent and update.finite else 0
            return replace(update, model=decoded, upload_bytes=size), down

        with ThreadPoolExecutor() as pool:
            encoder = pool.submit(self._encoder, model)  # while clients train

            def answered() -> Iterator[tuple[Update, Future[int]]]:
                arrived = model if self._precision == "fp32" else self._received(encoder.result(), None, model)[1]
                for update in self._inner.ask(method, round, arrived, sent or {}):
                    version = self.known_masks.seen.get(update.client)
                    if version not in downloads:
                        downloads[version] = pool.submit(download, self.known_masks.mask(version, mask.size))
                    yield update, downloads[version]

            for update, down in pool.map(upload, answered()):
                self.known_masks.sent(update.client, round, mask)
                yield replace(update, download_bytes=down.result() + beside)

    def _encoder(self, model: SparseModel) -> Encoder:
        # A diverged client is refused by name, not by encoding.
        return Encoder(model.on_host(), self._precision if model.finite else "fp32")

    def _received(self, encoder: Encoder, known: Mask | None, model: SparseModel) -> tuple[int, SparseModel]:
        """How many bytes a model takes, and what arrives."""
        if encoder.precision == "fp32":  # lossless: what would be decoded is this very model, and tests hold it to that
            return encoder.size(known, layout_known=known is not None), model
        blob = encoder.blob(known, layout_known=known is not None)
        weights = arrays.placed(decode(blob, known, model.layout).weights, model.weights)
        return len(blob), SparseModel(model.layout, weights, model.mask)

    def evaluate(self, model: SparseModel) -> Evaluated:
        """How good the model is, at the server."""
        return self._inner.evaluate(model)

    @property
    def kept(self) -> dict[int, State]:
        """What clients keep is not sent."""
        return self._inner.kept


def as_model(scores: Floats) -> SparseModel:
    """Scores as what the codec carries: one tensor, pruned where they are zero. They span many scales: no rounding."""
    flat = np.ravel(scores)
    return SparseModel(Layout((TensorSpec("scores", scores.shape),)), flat, flat != 0)


def encode_state(state: State, model: SparseModel) -> bytes:
    """Arrays that travel beside a model, as one blob. The receiver knows their names, and the model's mask."""
    names = tuple(state)
    return encode(carried(state, names, model), mask_of(names, model), layout_known=True)


def decode_state(blob: bytes, names: Sequence[str], model: SparseModel) -> State:
    """The arrays of that blob. Raises WireError if it is not one of these names under the model's mask."""
    layout, mask = layout_of(names, model.layout), mask_of(names, model)
    received = decode(blob, mask, layout)
    if not np.array_equal(received.host_mask, mask):
        raise WireError("what was sent beside the model has another mask than the model")
    return of_model(received, model.weights)
