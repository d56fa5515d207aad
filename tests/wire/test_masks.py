from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify.wire.binary import Reader, Writer
from fedsparsify.wire.masks import read_difference, read_subset, write_difference, write_subset


def written(write, *masks) -> str:
    writer = Writer()
    write(writer, *(np.array(mask, np.bool_) for mask in masks))
    return writer.buffer.hex(" ")


def places(size: int, *members: int) -> np.ndarray:
    mask = np.zeros(size, np.bool_)
    mask[list(members)] = True
    return mask


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([], "00"),
        ([False, False], "00"),
        ([True, True], "01"),
        ([True, False, True, True, False, False, False, False, True, False], "02 00 02 b0 80"),
        (places(100, 3), "03 00 01 03"),
        (places(100, 0, 1, 99), "03 00 03 00 00 61"),
        (places(1000, 700), "03 00 03 ff ff be"),  # 255 + 255 + 190
        (places(1000, 255), "03 00 02 ff 00"),
        (~places(100, 3), "04 00 01 03"),
    ],
)
def test_subsets_literally(members, expected):
    assert written(write_subset, members) == expected


def test_differences_literally():
    known = [True] * 20 + [False] * 20
    assert written(write_difference, known, known) == "00 00"
    assert written(write_difference, places(40, *range(1, 20)), known) == "03 00 01 00 00"  # the first died
    assert written(write_difference, places(40, *range(20), 39), known) == "00 03 00 01 13"  # the last came to life


@given(st.integers(0, 5000), st.sampled_from([0, 0.001, 0.01, 0.3, 0.7, 0.999, 1]), st.integers(0, 99))
def test_subsets_come_back(size, share, seed):
    members = np.random.default_rng(seed).random(size) < share
    writer = Writer()
    write_subset(writer, members)
    reader = Reader(writer.buffer)
    assert np.array_equal(read_subset(reader, size, "a subset"), members)
    reader.end()


@given(st.integers(0, 3000), st.integers(0, 99), st.sampled_from([0, 0.01, 0.5, 1]))
def test_differences_come_back(size, seed, change):
    rng = np.random.default_rng(seed)
    known = rng.random(size) < 0.4
    mask = known ^ (rng.random(size) < change)
    writer = Writer()
    write_difference(writer, mask, known)
    reader = Reader(writer.buffer)
    assert np.array_equal(read_difference(reader, known), mask)
    reader.end()
