"""A sparse model as bytes, and back; `docs/wire-format.md` has the format in full.

If sender and receiver have a mask in common, the blob holds the difference to it. If both know the network's layout as
well, the blob leaves it out. The common mask and layout are named by a hash.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from ..errors import WireError
from ..model import Floats, Layout, Mask, SparseModel, Survivors, TensorSpec
from .binary import CHECKSUM, Bytes, Reader, Writer, sealed
from .channels import read_channels, write_channels
from .masks import read_difference, read_places, read_subset, write_difference, write_subset
from .values import PRECISIONS, Precision, read_values, write_values

MAGIC = b"FSZ\x01"  # the last byte is the version
MAX_VALUES = 1 << 28  # a model of 1 GiB; `decode` takes another limit
MAX_TENSORS = 1 << 14
MAX_DIMENSIONS = 32
MAX_NAME = 1024
WHOLE, DIFFERENCE, UPDATE = range(3)  # layout and mask · layout and difference to a known mask · difference alone


def encode(
    model: SparseModel, known_mask: Mask | None = None, precision: Precision = "fp32", layout_known: bool = False
) -> bytes:
    """A model as bytes. The receiver has `known_mask`, if one is given; with `layout_known` it has the layout, too.

    "fp32" is lossless. The other precisions round the trainable values; statistics are always float32.
    """
    return Encoder(model, precision).blob(known_mask, layout_known)


class Encoder:
    """One model for receivers that know different masks: its values are encoded once, when this is made."""

    def __init__(self, model: SparseModel, precision: Precision = "fp32") -> None:
        if precision not in PRECISIONS:
            raise WireError(f"precision must be one of {', '.join(PRECISIONS)}. Received: {precision!r}.")
        self._model, self.precision = model, precision
        layout, kept, weights = model.layout, np.flatnonzero(model.host_mask), model.host_weights
        values = weights[kept] if len(kept) < layout.trainable else weights[: layout.trainable]
        writer = Writer(bytes([PRECISIONS.index(precision)]))
        if precision == "int8-channel":
            write_channels(writer, layout.tensors, kept, values)
        else:
            write_values(writer, values, _counts(layout.tensors, kept), precision)
        write_values(writer, weights[layout.trainable :], _sizes(layout.statistics), "fp32")
        self._values = writer.buffer  # what follows the mask

    def blob(self, known_mask: Mask | None = None, layout_known: bool = False) -> bytes:
        """The bytes for a receiver, as `encode` gives them."""
        return sealed(MAGIC, _mask_fields(self._model, known_mask, layout_known), self._values)

    def size(self, known_mask: Mask | None = None, layout_known: bool = False) -> int:
        """How many bytes `blob` gives."""
        fields = _mask_fields(self._model, known_mask, layout_known)
        return sum(map(len, (MAGIC, fields, self._values))) + CHECKSUM


def decode(
    blob: Bytes, known_mask: Mask | None = None, layout: Layout | None = None, max_values: int = MAX_VALUES
) -> SparseModel:
    """The model in a blob. A blob that is a difference needs the `known_mask` that it was made against.

    If `layout` is given, the model must have it. Otherwise the blob describes its own, of at most `max_values`.
    """
    reader, found, name = _opened(blob, layout, max_values)
    if name is None:
        mask = read_subset(reader, found.trainable, "the mask")
    else:
        mask = read_difference(reader, _checked(name, found, known_mask))
    kept = np.flatnonzero(mask)
    values, statistics = _read_values(reader, found, kept)
    weights = np.zeros(found.total, np.float32)
    weights[kept] = values
    weights[found.trainable :] = statistics
    return SparseModel(found, weights, mask)


def known_name(blob: Bytes) -> bytes | None:
    """The name of the mask that a blob is a difference to; None if it holds the whole mask."""
    reader = Reader.sealed(blob, MAGIC, "a model's blob")
    form = reader.byte("form", UPDATE)
    return None if form == WHOLE else bytes(reader.take(8, "the name of the known mask"))


def decode_survivors(blob: Bytes, max_values: int = MAX_VALUES) -> tuple[Layout, dict[str, Survivors]]:
    """The kept entries of a blob that needs no known mask. The dense tensors are never allocated."""
    reader, layout, name = _opened(blob, None, max_values)
    if name is not None:
        _checked(name, layout, None)
    kept = read_places(reader, layout.trainable, "the mask")
    values, statistics = _read_values(reader, layout, kept)
    tensors = {}
    ends = np.cumsum(_counts(layout.tensors, kept))
    for spec, last, first in zip(layout.tensors, ends, [0, *ends], strict=False):
        start = layout.slices[spec.name].start
        tensors[spec.name] = Survivors(spec.shape, kept[first:last] - start, values[first:last])
    for spec in layout.statistics:
        first = layout.slices[spec.name].start - layout.trainable
        tensors[spec.name] = Survivors(spec.shape, np.arange(spec.size), statistics[first : first + spec.size])
    return layout, tensors


def _opened(blob: Bytes, layout: Layout | None, most: int) -> tuple[Reader, Layout, bytes | None]:
    """A reader that stands before the mask, the layout, and the name of the known mask, if there is one."""
    reader = Reader.sealed(blob, MAGIC, "a model's blob")
    form = reader.byte("form", UPDATE)
    name = None if form == WHOLE else bytes(reader.take(8, "the name of the known mask"))
    found = _known_layout(layout) if form == UPDATE else _read_layout(reader, most)
    if layout is not None and found != layout:
        raise WireError("the blob's tensors are not those of the network that was expected.")
    return reader, found, name


def _read_values(reader: Reader, layout: Layout, kept: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The kept values and the statistics, which end a blob."""
    precision = PRECISIONS[reader.byte("precision", len(PRECISIONS) - 1)]
    if precision == "int8-channel":
        values = read_channels(reader, layout.tensors, kept)
    else:
        values = read_values(reader, _counts(layout.tensors, kept), precision)
    statistics = read_values(reader, _sizes(layout.statistics), "fp32")
    reader.end()
    return values, statistics


def mask_name(layout: Layout, mask: Mask) -> bytes:
    """Eight bytes that name a mask of a layout: BLAKE2b of the layout's fields and the mask's bitmap."""
    import hashlib  # loads OpenSSL, which reading files does not need

    writer = Writer()
    _write_layout(writer, layout)
    return hashlib.blake2b(bytes(writer.buffer) + np.packbits(mask).tobytes(), digest_size=8).digest()


def _mask_fields(model: SparseModel, known: Mask | None, layout_known: bool) -> bytearray:
    """Form, name, layout and mask, in the form with fewer bytes."""
    mask = model.host_mask
    whole = Writer(bytes([WHOLE]))
    _write_layout(whole, model.layout)
    if known is None:
        write_subset(whole, mask)
        return whole.buffer
    if known.dtype != np.bool_ or known.shape != mask.shape:
        raise WireError(f"known_mask must be {mask.size:,} truths. Received: shape {known.shape} of {known.dtype}.")
    difference = Writer(bytes([UPDATE if layout_known else DIFFERENCE]) + mask_name(model.layout, known))
    if not layout_known:
        _write_layout(difference, model.layout)
    write_difference(difference, mask, known)
    if len(difference.buffer) <= len(whole.buffer) + mask.size // 512:
        return difference.buffer  # a whole mask is rarely smaller, and encoding it too takes time
    write_subset(whole, mask)
    return min(difference.buffer, whole.buffer, key=len)


def _checked(name: bytes, layout: Layout, known: Mask | None) -> Mask:
    """The known mask, checked to be the one that the blob names."""
    if known is None:
        raise WireError(f"the blob is a difference to mask {name.hex()}: decode it with that known_mask.")
    if known.dtype != np.bool_ or known.shape != (layout.trainable,):
        raise WireError(f"known_mask must be {layout.trainable:,} truths. Received: shape {known.shape}.")
    if (mine := mask_name(layout, known)) != name:
        raise WireError(f"the blob is a difference to mask {name.hex()}. Received: known_mask {mine.hex()}.")
    return known


def _known_layout(layout: Layout | None) -> Layout:
    if layout is None:
        raise WireError("the blob leaves the layout out, as its receiver knows it: decode it with that layout.")
    return layout


def _write_layout(writer: Writer, layout: Layout) -> None:
    for specs in (layout.tensors, layout.statistics):
        if len(specs) > MAX_TENSORS:
            raise WireError(f"a model has at most {MAX_TENSORS:,} tensors. Received: {len(specs):,}.")
        writer.varint(len(specs))
        for spec in specs:
            if len(spec.name.encode()) > MAX_NAME or len(spec.shape) > MAX_DIMENSIONS:
                raise WireError(
                    f"a tensor has a name of at most {MAX_NAME:,} bytes and at most {MAX_DIMENSIONS} dimensions. "
                    f"Received: {spec.name[:80]!r} with {len(spec.shape)}."
                )
            writer.text(spec.name)
            writer.varint(len(spec.shape))
            for side in spec.shape:
                writer.varint(side)


def _read_layout(reader: Reader, most: int) -> Layout:
    """Names and shapes. Nothing is allocated for the values yet; their number is checked against the limit."""
    groups: list[tuple[TensorSpec, ...]] = []
    names: set[str] = set()
    left = most
    for group in ("trainable tensors", "statistics"):
        specs = []
        for _ in range(reader.varint(f"number of {group}", MAX_TENSORS)):
            name = reader.text("a tensor's name", MAX_NAME)
            if name in names:
                raise reader.fail(f"tensor {name!r} is there twice")
            names.add(name)
            sides = reader.varint(f"dimensions of {name!r}", MAX_DIMENSIONS)
            shape = tuple(reader.varint(f"shape of {name!r}", most) for _ in range(sides))
            # An empty tensor's other sides count, too: numpy refuses shapes whose sides multiply beyond an address.
            if (size := prod(side or 1 for side in shape)) > left:
                raise reader.fail(f"{name!r} has {size:,} values; of at most {most:,}, {left:,} are left")
            left -= size
            specs.append(TensorSpec(name, shape))
        groups.append(tuple(specs))
    return Layout(groups[0], groups[1])


def _sizes(specs: tuple[TensorSpec, ...]) -> NDArray[np.int64]:
    return np.array([spec.size for spec in specs], np.int64)


def _counts(specs: tuple[TensorSpec, ...], kept: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the indices `kept` lie in each tensor."""
    ends = np.searchsorted(kept, np.cumsum(_sizes(specs)))
    return np.diff(ends, prepend=0)
