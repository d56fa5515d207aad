from __future__ import annotations

import numpy as np
import pytest
from conftest import small_model
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify.errors import WireError
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.wire.codec import Encoder, decode, decode_survivors, encode, mask_name

LAYOUT = Layout((TensorSpec("w", (2, 3)), TensorSpec("b", ())), (TensorSpec("s", (1,)),))
MODEL = SparseModel(LAYOUT, np.array([1.5, 0, -2, 0, 0, 0.5, 3, 7], np.float32), np.array([1, 1, 1, 0, 0, 1, 1], bool))
DENSE = np.ones(7, np.bool_)

MAGIC = "46 53 5a 01"
FIELDS = "02 01 77 02 02 03 01 62 00 01 01 73 01 01"  # two tensors "w" (2, 3) and "b" (), one statistic "s" (1)
PLANES = "00 05 7f 00 80 7e 80  00 05 80 00 00 00 80  00 05 00 00 00 00 00  00 05 00 00 01 00 00"
SAME = f"{MAGIC} 02 71 b6 9a 92 f6 de f1 37 00 00"  # the mask of MODEL by name, nobody died, nobody came
STATISTIC = "00 01 81 00 01 c0 00 01 00 00 01 00"
GOLDEN = {
    "whole": (None, "fp32", False, f"{MAGIC} 00 {FIELDS} 02 00 01 e6 00 {PLANES} {STATISTIC} 3c 6f 0e d3"),
    "update": (
        DENSE,
        "fp32",
        True,
        f"{MAGIC} 02 22 2a d7 9d 80 30 d8 6c 02 00 01 18 00 00 {PLANES} {STATISTIC} cb 3c 3f 1d",
    ),
    "same mask": (
        MODEL.mask,
        "fp32",
        True,
        f"{SAME} 00 {PLANES} {STATISTIC} ce c4 03 21",
    ),
    "fp16": (
        MODEL.mask,
        "fp16",
        True,
        f"{SAME} 01 00 05 7c 00 80 70 84 00 05 00 00 01 00 00 {STATISTIC} bc dd b1 d0",
    ),
    "bf16": (
        MODEL.mask,
        "bf16",
        True,
        f"{SAME} 02 00 05 7f 00 80 7e 80 00 05 80 00 01 00 80 {STATISTIC} 41 50 ff bc",
    ),
    "int8": (
        MODEL.mask,
        "int8",
        True,
        f"{SAME} 03 04 02 81 3c 06 83 c1 3c 00 05 5f 00 81 20 7f {STATISTIC} 14 87 67 0e",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name):
    known, precision, layout_known, text = GOLDEN[name]
    blob = bytes.fromhex(text)
    assert encode(MODEL, known, precision, layout_known) == blob
    back = decode(blob, known, LAYOUT)
    np.testing.assert_array_equal(back.mask, MODEL.mask)
    np.testing.assert_allclose(back.weights, MODEL.weights, rtol=0, atol=0.01 if precision == "int8" else 0)


def test_deflated_golden_bytes_decode_wherever_they_were_made():
    # 300 ones of which the first 100 are pruned: gaps and planes are deflated, so only the decoder is held to them.
    model = small_model([0] * 100 + [1] * 200, [False] * 100 + [True] * 200)
    text = (
        "46 53 5a 01 00 01 01 77 01 ac 02 00 04 01 06 63 60 a0 3d 00 00 00 01 06 ab af 1f 1e 00 00 01 06 63 60 18 "
        "1e 00 00 01 06 63 60 18 1e 00 00 01 06 63 60 18 1e 00 00 09 3e 78 0a"
    )
    assert decode(bytes.fromhex(text)).same_as(model)


def bits(draw: st.DrawFn, size: int, share: float) -> np.ndarray:
    return np.random.default_rng(draw(st.integers(0, 99))).random(size) < share


@st.composite
def models(draw) -> SparseModel:
    """Any layout, any bits: NaN payloads, infinities and negative zeros too."""
    shapes = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=4)
    tensors = [TensorSpec(f"t{i}", shape) for i, shape in enumerate(draw(shapes))]
    statistics = [TensorSpec(f"s{i}", shape) for i, shape in enumerate(draw(shapes))]
    layout = Layout(tuple(tensors), tuple(statistics))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    if draw(st.booleans()):
        weights = rng.integers(0, 1 << 32, layout.total, np.uint32).view(np.float32)
    else:
        weights = rng.normal(0, 0.1, layout.total).astype(np.float32)
    return SparseModel.masked(layout, weights, bits(draw, layout.trainable, draw(st.sampled_from([0, 0.1, 0.5, 1]))))


@given(models(), st.data())
def test_lossless_round_trip_against_any_known_mask(model, data):
    known = bits(data.draw, model.mask.size, data.draw(st.sampled_from([0, 0.3, 0.9, 1])))
    encoder = Encoder(model)
    for known_mask in (None, model.mask, known):
        for layout_known in (False, True):
            blob = encode(model, known_mask, layout_known=layout_known)
            assert decode(blob, known_mask, model.layout).same_as(model)
            assert encoder.blob(known_mask, layout_known) == blob  # the same encoder for all receivers
            assert encoder.size(known_mask, layout_known) == len(blob)
        assert decode(encode(model, known_mask), known_mask).same_as(model)


def same_survivors(model, blob):
    layout, tensors = decode_survivors(blob)
    assert layout == model.layout
    for name, expected in model.tensors().items():
        assert tensors[name].dense().tobytes() == expected.tobytes()
        assert np.all(np.diff(tensors[name].places) > 0)


@given(models())
def test_survivors_are_the_model_without_its_zeros(model):
    same_survivors(model, encode(model))


def test_survivors_of_a_difference_are_refused():
    mask = np.arange(10_000) % 3 == 0
    model = SparseModel.masked(Layout((TensorSpec("w", (100, 100)),)), np.ones(10_000, np.float32), mask)
    for layout_known in (False, True):
        with pytest.raises(WireError, match="decode it with that"):
            decode_survivors(encode(model, mask, layout_known=layout_known))


@given(models())
def test_lossy_precisions_round_and_never_touch_mask_or_statistics(model):
    finite = SparseModel.masked(model.layout, np.nan_to_num(model.weights, posinf=9, neginf=-9).clip(-9, 9), model.mask)
    for precision, share in (("fp16", 2**-11), ("bf16", 2**-8), ("int8", None)):
        back = decode(encode(finite, precision=precision))
        np.testing.assert_array_equal(back.mask, finite.mask)
        views, theirs = finite.tensors(), back.tensors()
        for spec in finite.layout.statistics:
            assert views[spec.name].tobytes() == theirs[spec.name].tobytes()
        for spec in finite.layout.tensors:
            a = views[spec.name]
            slack = np.abs(a).max(initial=0) / 253 if share is None else np.abs(a) * share + 2**-24
            assert np.all(np.abs(a - theirs[spec.name]) <= slack)


def test_a_long_model_takes_the_sampled_paths():
    rng = np.random.default_rng(5)
    weights = rng.normal(0, 0.05, 400_000).astype(np.float32)
    layout = Layout((TensorSpec("w", (1000, 400)),))
    for share in (0.001, 0.1, 0.5, 0.9, 1):
        model = SparseModel.masked(layout, weights, rng.random(weights.size) < share)
        shrunk = model.under(rng.random(weights.size) < 0.98)
        assert decode(encode(shrunk, model.mask), model.mask).same_as(shrunk)
        assert decode(encode(shrunk)).same_as(shrunk)
        same_survivors(shrunk, encode(shrunk))
        same = encode(shrunk, shrunk.mask, layout_known=True)
        assert len(same) < 0.9 * 4 * shrunk.nonzero + 60


def test_whole_neurons_that_died_cost_next_to_nothing():
    layout = Layout((TensorSpec("w", (1000, 400)),))
    mask = np.zeros((1000, 400), np.bool_)
    mask[:, ::4] = True  # every fourth column: a pattern, whichever way it is written
    model = SparseModel(layout, np.zeros(400_000, np.float32), mask.ravel())
    assert len(encode(model)) < 1500


def test_numbers_too_large_for_fp16_become_infinite_and_no_number_stays_none():
    model = small_model([70000.0, np.nan, -np.inf, 1.0])
    for precision in ("fp16", "bf16"):
        back = decode(encode(model, precision=precision)).weights
        assert np.isnan(back[1]) and back[2] == -np.inf and back[3] == 1
    assert decode(encode(model, precision="fp16")).weights[0] == np.inf
    with pytest.raises(WireError, match="NaN or infinite"):
        encode(model, precision="int8")


@pytest.mark.parametrize("spec", [TensorSpec("w" * 1025, (1,)), TensorSpec("w", (1,) * 33)])
def test_what_no_decoder_takes_is_never_written(spec):
    with pytest.raises(WireError, match="at most 1,024 bytes and at most 32 dimensions"):
        encode(SparseModel.dense(Layout((spec,)), np.zeros(1, np.float32)))


def test_a_mask_has_one_name_for_each_layout():
    assert mask_name(LAYOUT, DENSE) != mask_name(LAYOUT, MODEL.mask)
    assert mask_name(LAYOUT, DENSE) != mask_name(Layout((TensorSpec("w", (7,)),)), DENSE)
    assert mask_name(LAYOUT, DENSE).hex() == "222ad79d8030d86c"


def test_receivers_that_lack_what_the_sender_thought_they_had():
    blob = encode(MODEL, DENSE, layout_known=True)
    with pytest.raises(WireError, match="decode it with that layout"):
        decode(blob, DENSE)
    with pytest.raises(WireError, match="difference to mask 222ad79d8030d86c: decode"):
        decode(blob, None, LAYOUT)
    with pytest.raises(WireError, match="Received: known_mask 71b69a92f6def137"):
        decode(blob, MODEL.mask, LAYOUT)
    with pytest.raises(WireError, match=r"Received: shape \(3,\)"):
        decode(blob, DENSE[:3], LAYOUT)
    with pytest.raises(WireError, match="not those of the network"):
        decode(encode(MODEL), layout=Layout((TensorSpec("w", (7,)),)))
    with pytest.raises(WireError, match="7 truths"):
        encode(MODEL, DENSE[:3])
    with pytest.raises(WireError, match="Received: 'fp8'"):
        encode(MODEL, precision="fp8")
