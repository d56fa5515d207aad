"""The numbers of Winograd's transforms: F(m, 3) makes m outputs of a line by m + 2 products (Lavin and Gray, 2016).

A line of m + 2 inputs and one of three weights are taken as polynomials, evaluated at 0, at pairs ±p of points and at
infinity, multiplied there, and interpolated. All factors of inputs and outputs are exact in binary.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

ROWS = 4  # outputs of a tile, downwards
POINTS = {4: (1.0, 2.0), 8: (1.0, 2.0, 0.5, 0.75)}  # of the pairs, by outputs; 3/4 errs less than 4, 3 or 3/2 do


def frequencies(columns: int) -> int:
    """Products that a tile of so many columns takes."""
    return (ROWS + 2) * (columns + 2)


def polynomial(points: tuple[float, ...]) -> list[float]:
    """Coefficients of the product of all x² − p², in x², lowest first."""
    made = np.ones(1)
    for point in points:
        made = np.convolve(made, [-(point**2), 1])
    return [float(factor) for factor in made]


def without(points: tuple[float, ...], k: int) -> tuple[float, ...]:
    """All points but one."""
    return points[:k] + points[k + 1 :]


@cache
def factors(columns: int) -> tuple[float, ...]:
    """Every factor that a tile's transforms use."""
    found: list[float] = []
    for points in (POINTS[ROWS], POINTS[columns]):
        found += polynomial(points)
        for k, point in enumerate(points):
            found += [*polynomial(without(points, k)), -point, *(point**power for power in range(2 * len(points)))]
    return tuple(dict.fromkeys(found))


def of_weights(outputs: int) -> NDArray[np.float64]:
    """The matrix by which three weights become frequencies: at 0, at p and −p of each pair, and at infinity."""
    places = np.array([0.0, *(sign * point for point in POINTS[outputs] for sign in (1, -1))])
    apart = places[:, None] - places + np.eye(places.size)
    return np.vstack([places[:, None] ** np.arange(3) / apart.prod(1)[:, None], [0, 0, 1]])
