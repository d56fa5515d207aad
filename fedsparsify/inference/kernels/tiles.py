"""Tiles of the sparse kernel: how many rows × columns of outputs it sums at a time.

Input: the block of a layer's output. Output: the number of the tile for it.
"""

from __future__ import annotations

from collections.abc import Sequence

TILES = ((4, 4), (2, 4), (2, 2), (1, 4), (1, 2), (1, 1))  # rows × columns; a tile's number is its index
TILE_4X4, TILE_2X4, TILE_2X2, TILE_1X4, TILE_1X2, TILE_1X1 = range(len(TILES))
STRIDED_TILES = (TILES[TILE_2X4], TILES[TILE_1X1])  # the two that strided convolutions have code for
# Vectors of the tiles of 1 × 1 convolutions on blocks without a halo. 197 tokens are 13, 25 or 50 vectors.
LINE_TILE, TOKEN_TILE, SHORT_LINE_TILE = 16, 13, 8
WEIGHT_COST = 2.5  # of a weight besides its products, in products


def tile_for(block: tuple[int, int], lanes: int, stride: tuple[int, int] = (1, 1)) -> int:
    """The tile that covers a block at the least cost."""
    return TILES.index(min(_usable(block, lanes, stride), key=lambda tile: _cost(tile, block)))


def line_tile(vectors: int, lanes: int) -> int:
    """The tile of a 1 × 1 convolution on so many vectors end to end; AVX2 has no registers for the long one."""
    tiles = (TOKEN_TILE, SHORT_LINE_TILE) if lanes == 8 else (LINE_TILE, TOKEN_TILE, SHORT_LINE_TILE)
    usable = [tile for tile in tiles if tile <= vectors] or [SHORT_LINE_TILE]
    return min(usable, key=lambda tile: _line_cost(tile, vectors))


def _line_cost(tile: int, vectors: int) -> float:
    """What a weight costs in all tiles; a short one follows long ones where that is enough."""
    count, rest = divmod(vectors, tile)
    last = SHORT_LINE_TILE if tile == LINE_TILE and rest <= SHORT_LINE_TILE else tile
    return count * (tile + WEIGHT_COST) + (last + WEIGHT_COST if rest else 0)


def covering_cost(block: tuple[int, int], lanes: int, stride: tuple[int, int] = (1, 1)) -> float:
    """Products that a weight takes in all tiles of a block, its fixed cost included."""
    return min(_cost(tile, block) for tile in _usable(block, lanes, stride))


def _usable(block: tuple[int, int], lanes: int, stride: tuple[int, int]) -> list[tuple[int, int]]:
    usable: Sequence[tuple[int, int]] = TILES[1:] if lanes == 8 else TILES  # AVX2 has 16 registers, the others 32
    if stride[1] > 1:
        usable = STRIDED_TILES
    return [tile for tile in usable if tile[0] <= block[0] and tile[1] <= block[1]]


def _cost(tile: tuple[int, int], block: tuple[int, int]) -> float:
    """Sums to update, plus the fixed cost of each weight."""
    return -(-block[0] // tile[0]) * -(-block[1] // tile[1]) * (tile[0] * tile[1] + WEIGHT_COST)
