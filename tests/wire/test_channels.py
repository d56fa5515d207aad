"""Values with a scale per channel: literal bytes, what is lost, and damaged scales."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify.errors import WireError
from fedsparsify.model import SparseModel
from fedsparsify.wire.codec import decode, decode_survivors, encode

MODEL = SparseModel.of({"w": np.float32([[63, -1], [0.25, 0], [0, 0]]), "b": np.float32([0.1])})
MODEL = SparseModel.masked(MODEL.layout, MODEL.weights, np.array([1, 1, 1, 0, 0, 0, 1], np.bool_))


def sealed(blob: bytes) -> bytes:
    """A blob with a new checksum."""
    return blob[:-4] + crc32(blob[:-4]).to_bytes(4, "little")


def test_golden_bytes() -> None:
    blob = encode(MODEL, precision="int8-channel")
    at = blob.rindex(np.float32([1]).tobytes())  # the tensor's scale
    # Two channels keep something: 256 of 256 and, rounded up, 2 of 256 of the tensor's scale.
    assert blob[at + 4 : -4].hex() == "0002ff01" + "0003" + "3fff20"
    back = decode(blob)
    np.testing.assert_array_equal(back.weights[:6], [63, -1, 0.25, 0, 0, 0])
    assert back.weights[6] == np.float32(0.1)  # a tensor of one dimension stays float32


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.05, 0.5, 1.0]))
def test_a_value_moves_by_half_a_step_at_most(seed: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    parts = {"a": rng.normal(0, 0.1, (5, 3, 2)), "b": rng.normal(0, 9, 4), "c": rng.normal(0, 1e-3, (3, 7))}
    whole = SparseModel.of({name: part.astype(np.float32) for name, part in parts.items()})
    model = SparseModel.masked(whole.layout, whole.weights, rng.random(whole.layout.trainable) < density)
    blob = encode(model, precision="int8-channel")
    back = decode(blob)
    assert (back.mask == model.mask).all()
    np.testing.assert_array_equal(back.tensors()["b"], model.tensors()["b"])
    for name in ("a", "c"):
        tensor = model.tensors()[name]
        largest = np.abs(tensor).reshape(len(tensor), -1).max(1)
        step = (largest + largest.max() / 256) / 63
        wrong = np.abs(back.tensors()[name] - tensor).reshape(len(tensor), -1).max(1)
        assert (wrong <= 0.5001 * step).all()
    for name, found in decode_survivors(blob)[1].items():
        np.testing.assert_array_equal(found.dense(), back.tensors()[name])


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_damaged_scales_are_refused(scale: float) -> None:
    blob = encode(MODEL, precision="int8-channel").replace(np.float32([1]).tobytes(), np.float32([scale]).tobytes())
    with pytest.raises(WireError, match="1 of 1 scales are negative, infinite or no number"):
        decode(sealed(blob))


def test_weights_that_are_no_numbers_are_refused() -> None:
    weights = MODEL.weights.copy()
    weights[0] = np.nan
    with pytest.raises(WireError, match="NaN or infinite"):
        encode(SparseModel(MODEL.layout, weights, MODEL.mask), precision="int8-channel")
