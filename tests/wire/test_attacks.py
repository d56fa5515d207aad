"""Bytes that somebody made to hurt: each is a WireError that says what and where, and none is believed about sizes."""

from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import pytest
from conftest import small_model
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify.errors import WireError
from fedsparsify.wire.binary import Writer
from fedsparsify.wire.codec import MAGIC, decode, decode_survivors, encode

GOOD = encode(small_model([1, 0, 2, 0], [True, False, True, False], statistics=[3]))


def sealed(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "little")


def blob(layout: str, rest: str = "") -> bytes:
    """A whole model with these layout fields, and a checksum that fits."""
    return sealed(MAGIC + b"\0" + bytes.fromhex(layout) + bytes.fromhex(rest))


def bomb(size: int) -> bytes:
    """A section that inflates to so many zeros."""
    writer = Writer()
    writer.section(bytes(size))
    return bytes(writer.buffer)


W4 = "01 01 77 01 04 00"  # one tensor "w" of four values
ATTACKS = {
    "nothing": (b"", "at least 8 bytes. Received: 0"),
    "another file": (b"PK\3\4" + bytes(40), "begin with b'FSZ'"),
    "a later version": (sealed(b"FSZ\x02" + GOOD[4:-4]), "version 2; this release reads version 1"),
    "trailing bytes": (sealed(GOOD[:-4] + b"!"), "1 bytes follow where nothing should"),
    "an unknown form": (sealed(MAGIC + b"\x03" + GOOD[5:-4]), "form must be at most 2. Received: 3"),
    "the same tensor twice": (blob("02 01 77 00 01 77 00 00"), "'w' is there twice"),
    "a statistic named like a tensor": (blob("01 01 77 00 01 01 77 00"), "'w' is there twice"),
    "a huge tensor": (blob("01 01 77 01 80 80 80 80 80 80 80 01 00"), "shape of 'w' must be at most 268,435,456"),
    "a negative side": (blob("01 01 77 01 ff ff ff ff ff ff ff ff ff 01 00"), "more than nine bytes"),
    "sides that multiply": (blob("01 01 77 04" + "ff 7f" * 4 + "00"), "are left"),
    "an empty tensor with huge sides": (blob("01 01 77 06 00" + "ff ff 7f" * 5 + "00"), "are left"),
    "too many tensors": (blob("ff ff ff 7f"), "number of trainable tensors must be at most 16,384"),
    "too many dimensions": (blob("01 01 77 7f"), "dimensions of 'w' must be at most 32. Received: 127"),
    "a name without end": (blob("01 ff ff 7f 77"), "length of a tensor's name must be at most 1,024"),
    "a name that is no text": (blob("01 02 ff fe 00 00"), "not UTF-8"),
    "a layout cut off": (blob("01 01"), "a tensor's name should have 1 bytes, but 0 are left"),
    "an unknown mask": (blob(W4, "05"), "kind of the mask must be at most 4. Received: 5"),
    "a long bitmap": (blob(W4, "02 00 02 ff ff"), "length of the mask must be at most 1. Received: 2"),
    "a bitmap cut off": (blob(W4, "02 00 01"), "the mask should have 1 bytes, but 0 are left"),
    "an empty bitmap": (blob(W4, "02 00 00"), "should have 1 bytes. Received: 0"),
    "a bit beyond the end": (blob(W4, "02 00 01 f8"), "sets bits beyond its 4 places"),
    "a gap beyond the end": (blob(W4, "03 00 01 04"), "names place 4 of 4"),
    "gaps that overlap the end": (blob(W4, "03 00 02 03 00"), "names place 4 of 4"),
    "a gap without end": (blob(W4, "03 00 01 ff"), "ends within a gap"),
    "no gap at all": (blob(W4, "03 00 00"), "ends within a gap"),
    "an unknown section": (blob(W4, "02 02 01 f0"), "kind of the mask must be at most 1. Received: 2"),
    "an unknown precision": (blob(W4, "01 05"), "precision must be at most 4. Received: 5"),
    "too few values": (blob(W4, "01 00 00 03 00 00 00"), "plane 1 of the values should have 4 bytes. Received: 3"),
    "values cut off": (blob(W4, "01 00 00 04 00 00"), "should have 4 bytes, but 2 are left"),
    "no deflate at all": (blob(W4, "01 00 01 02 ff ff"), "cannot be inflated"),
    "deflate cut off": (blob(W4, "01 00 01 01 63"), "ends before its deflated data does"),
    "deflate and more": (blob(W4, "01 00 01 04 03 00 00 00"), "ends after its deflated data does"),
    "a scale that is no number": (blob(W4, "01 03 00 00 c0 7f"), "1 of 1 scales"),
    "a negative scale": (blob(W4, "01 03 00 00 80 bf"), "1 of 1 scales"),
    "an infinite scale": (blob(W4, "01 03 00 00 80 7f"), "1 of 1 scales"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_is_refused_with_what_and_where(name):
    data, message = ATTACKS[name]
    with pytest.raises(WireError) as refused:
        decode(data)
    assert message in str(refused.value)


@pytest.mark.parametrize(("layout", "mask"), [(W4, "02"), (W4, "03"), ("01 01 77 01 80 80 04 00", "01 00")])
def test_a_bomb_is_never_inflated(layout, mask):
    data = blob(layout, mask)[:-4] + bomb(100_000_000)  # 97 KB that inflate to 100 MB
    tracemalloc.start()
    with pytest.raises(WireError, match=r"must be at most|inflates to more than"):
        decode(sealed(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_scale_that_overflows_gives_infinite_weights_for_the_receiver_to_refuse():
    huge = sealed(blob(W4, "01 03 ff ff 7f 7f 00 04 7f 81 01 00")[:-4])
    assert decode(huge).weights.tolist() == [np.inf, -np.inf, float(np.finfo(np.float32).max), 0]


def test_the_cap_holds_before_anything_is_allocated():
    tracemalloc.start()
    with pytest.raises(WireError, match="at most 1,000"):
        decode(blob("01 01 77 01 a0 8d 06 00", "01 00"), max_values=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@given(st.integers(0, len(GOOD) - 1))
def test_every_truncation_is_refused(length):
    with pytest.raises(WireError):
        decode(GOOD[:length])


@given(st.integers(0, 8 * len(GOOD) - 1))
def test_every_flipped_bit_is_refused(bit):
    data = bytearray(GOOD)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        decode(data)


@given(st.binary(max_size=60), st.integers(4, len(GOOD) - 5))
def test_whatever_is_spliced_in_behind_a_fitting_checksum_decodes_or_is_refused(noise, at):
    data = sealed(GOOD[:at] + noise + GOOD[at + len(noise) : -4])
    try:
        model = decode(data, max_values=1 << 16)
    except WireError:
        with pytest.raises(WireError):
            decode_survivors(data, max_values=1 << 16)
        return
    assert decode(encode(model), max_values=1 << 16).same_as(model)


def test_a_blob_may_be_any_kind_of_bytes():
    expected = decode(GOOD)
    assert decode(bytearray(GOOD)).same_as(expected)
    assert decode(memoryview(GOOD)).same_as(expected)
    assert decode(np.frombuffer(GOOD, np.uint8).data).same_as(expected)
