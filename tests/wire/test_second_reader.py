"""The page describes the format well enough: a reader written from it alone reads what we write."""

from __future__ import annotations

import numpy as np
import pytest
from second_reader import decode as read

from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.wire.binary import Writer
from fedsparsify.wire.codec import PRECISIONS, _write_layout, decode, encode

LAYOUT = Layout(
    (TensorSpec("w", (40, 30)), TensorSpec("größe", ()), TensorSpec("b", (7,))), (TensorSpec("mean", (5,)),)
)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("density", [0, 0.02, 0.4, 0.9, 1])
def test_it_reads_what_we_write(precision, density):
    rng = np.random.default_rng(3)
    mask = rng.random(LAYOUT.trainable) < density
    model = SparseModel.masked(LAYOUT, rng.normal(0, 0.1, LAYOUT.total).astype(np.float32), mask)
    fields = Writer()
    _write_layout(fields, LAYOUT)
    for known in (None, mask, rng.random(LAYOUT.trainable) < 0.5):
        for layout_known in (False, True):
            blob = encode(model, known, precision, layout_known)
            found, kept = read(blob, None if known is None else known.tolist(), bytes(fields.buffer))
            ours = decode(blob, known, LAYOUT)
            assert kept == ours.mask.tolist()
            for name, tensor in ours.tensors().items():
                shape, values = found[name]
                assert shape == tensor.shape
                np.testing.assert_array_equal(np.array(values, np.float32), tensor.ravel())
