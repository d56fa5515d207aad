"""Weights as the kernels read them, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify.inference.frontend.steps import Conv, Pool
from fedsparsify.inference.frontend.weights import Weights
from fedsparsify.inference.kernels.tiles import tile_for
from fedsparsify.inference.kernels.winograd_numbers import POINTS, of_weights
from fedsparsify.inference.layout.levels import levels_of
from fedsparsify.inference.layout.storage import Storage
from fedsparsify.inference.lowering.weight_streams import (
    find_pairs,
    pixel_lane_stream,
    small_stream,
    sparse_stream,
)


def conv(weight: list[object]) -> Conv:
    dense = np.array(weight, np.float32)
    return Conv("c", ("input",), Weights.of(dense), np.zeros(len(dense), np.float32))


def test_a_stream_by_hand() -> None:
    """Two output channels, one of which has kept nothing; each visit is three counts, then its entries."""
    step = conv([[[[0, 2]], [[3, 0]]], [[[0, 0]], [[0, 0]]]])
    source = Storage((2, 1, 2), (1, 1), (1, 2), lanes=4)
    made = sparse_stream(step, source, blocks=1, paired=False)
    assert made[:3].tolist() == [2, 0, 0]
    assert made[[3, 5]].view(np.float32).tolist() == [2, 3]
    assert made[[4, 6]].tolist() == [16, 32]  # second column: one vector of 4 floats; second channel: two
    assert made[7:].tolist() == [0, 0, 0]


def test_a_stream_of_one_pixel_per_lane_by_hand() -> None:
    """An image of 2 x 2: a count, then weights with the lanes that stay inside, above the offset of what they read."""
    step = replace(conv([[[[0, 0, 0], [0, 5, 6], [0, 0, 0]]], [[[7, 0, 0], [0, 0, 0], [0, 0, 0]]]]), padding=(1, 1))
    made = pixel_lane_stream(step, Storage((1, 2, 2), (2, 2), (1, 1), lanes=4))
    floats = made.view(np.float32)
    assert (made[0], made[5]) == (2, 1)
    assert floats[[1, 3, 6]].tolist() == [5, 6, 7]
    assert [(made[k] & 0xFFFF, made[k] >> 16) for k in (2, 4, 7)] == [(0, 0b1111), (1, 0b0101), (0xFFFD, 0b1000)]


def test_neighbours_pair_up() -> None:
    alive = np.array([[[[1, 1, 1], [0, 0, 1], [1, 0, 0]]]], np.bool_)
    single, right, below = (found[0, 0].astype(int).tolist() for found in find_pairs(alive, paired=True))
    assert right == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert below == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert single == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]


@given(st.integers(0, 2**18 - 1))
def test_pairing_loses_and_repeats_nothing(bits: int) -> None:
    alive = np.array([bits >> k & 1 for k in range(18)], np.bool_).reshape(1, 2, 3, 3)
    single, right, below = find_pairs(alive, paired=True)
    again = single.astype(int) + right + below
    again[..., 1:] += right[..., :-1]
    again[:, :, 1:] += below[:, :, :-1]
    assert np.array_equal(again, alive)


def test_tiles_fit_their_blocks() -> None:
    assert [tile_for(block, 16) for block in ((8, 8), (2, 2), (1, 1), (1, 4))] == [0, 2, 5, 3]
    assert tile_for((8, 8), lanes=8) == 1  # sixteen registers hold no 4 x 4


def test_weights_survive_the_way_into_the_engine_and_back() -> None:
    dense = np.array([0, 1, 0, -2, 0, 0, 3, 4], np.float32).reshape(4, 2, 1, 1)
    weights = Weights.of(dense)
    assert np.array_equal(weights.dense(), dense)
    assert weights.density == 0.5
    assert weights.per_output().tolist() == [1, 1, 0, 2]
    assert np.array_equal(weights.part(1, 3).dense(), dense[1:3])
    assert weights.scaled(np.array([2.0, 3, 4, 5])).values.tolist() == [2, -6, 15, 20]


def test_grids_become_coarser_as_images_shrink() -> None:
    """32 px and 16 px in blocks of one image, 8 px of four images, 4 px of sixteen."""
    steps, shapes, side = [], {"input": (3, 32, 32)}, 32
    for name in "abcd":
        before = steps[-1].name if steps else "input"
        kernel = Weights((3, 3, 3, 3), np.zeros(0, np.int64), np.zeros(0, np.float32))
        steps.append(Conv(name, (before,), kernel, np.zeros(3, np.float32), padding=(1, 1)))
        steps.append(Pool(f"{name}p", (name,), mean=False, kernel=(2, 2), stride=(2, 2)))
        shapes |= {name: (3, side, side), f"{name}p": (3, side // 2, side // 2)}
        side //= 2
    levels = levels_of(steps, shapes, lanes=16, single=False)
    assert [(level.grid, len(level.steps)) for level in levels] == [((4, 4), 4), ((2, 2), 2), ((1, 1), 2)]


@pytest.mark.parametrize(("kept", "grid"), [(0.0, (4, 4)), (0.1, (4, 4)), (0.5, (4, 2))])
def test_blocks_are_wide_where_most_weights_are_left(kept: float, grid: tuple[int, int]) -> None:
    weight = np.random.default_rng(0).random((8, 8, 3, 3)).astype(np.float32) * (np.arange(9).reshape(3, 3) < 9 * kept)
    steps = [Conv("a", ("input",), Weights.of(weight), np.zeros(8, np.float32), padding=(1, 1))]
    shapes = {"input": (8, 32, 32), "a": (8, 32, 32)}
    assert levels_of(steps, shapes, lanes=16, single=False)[0].grid == grid
    assert levels_of(steps, shapes, lanes=16, single=True)[0].grid == (4, 4)


@pytest.mark.parametrize("outputs", [4, 8])
def test_winograds_frequencies_of_weights(outputs: int) -> None:
    """Taken at its points and read back, a product of polynomials is a convolution."""
    points = [0.0, *(sign * p for p in POINTS[outputs] for sign in (1, -1))]
    line, weights = np.arange(1.0, outputs + 3), np.array([3.0, -1, 2])
    at = np.array([[x**k for k in range(outputs)] for x in points] + [[0.0] * (outputs - 1) + [1]])
    apart = [np.prod([x - y for y in points if y != x]) for x in points]
    basis = [np.poly([y for y in points if y != x])[::-1] for x in points]
    inputs = np.array([*(np.append(b, 0) for b in basis), np.poly(points)[::-1]]) @ line
    expected = [line[k : k + 3] @ weights for k in range(outputs)]
    np.testing.assert_allclose(at.T @ (of_weights(outputs) @ weights * inputs), expected, rtol=1e-12)
    assert np.allclose(of_weights(outputs)[:-1, 0] * apart, 1)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.05, 0.5, 1.0]), st.integers(1, 5))
def test_a_stream_of_small_images_is_a_convolution(seed: int, density: float, blocks: int) -> None:
    """Read back weight by weight, it gives the dense weights."""
    rng = np.random.default_rng(seed)
    weight = (rng.normal(size=(3, 5, 3, 3)) * (rng.random((3, 5, 3, 3)) < density)).astype(np.float32)
    source = Storage((5, 2, 2), (1, 1), (2, 2), lanes=4)
    made = small_stream(conv(weight.tolist()), source, blocks)
    found, at = np.zeros_like(weight), 0
    for visit in range(blocks * 3):
        counts, at = made[at : at + 9], at + 9
        for position, count in enumerate(counts):
            for _ in range(count):
                value, offset = made[at : at + 1].view(np.float32)[0], int(made[at + 1])
                channel = offset // (4 * source.channel)
                assert channel // -(-5 // blocks) == visit // 3
                found[visit % 3, channel, position // 3, position % 3] = value
                at += 2
    assert at == made.size
    np.testing.assert_array_equal(found, weight)
