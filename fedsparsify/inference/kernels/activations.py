"""Activations other than clamps, in plain arithmetic (see native/exponential.py): the kernels of their operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...native.compiled import compiled
from ...native.exponential import exponential
from ...ops import ACTIVATIONS

f32 = np.float32


@compiled
def tangent(x: Any) -> Any:
    """The hyperbolic tangent; a polynomial near zero, where the quotient would cancel (Cephes' tanhf)."""
    z = x * x
    p = f32(-5.70498872745e-3) * z + f32(2.06390887954e-2)
    p = p * z + f32(-5.37397155531e-2)
    p = p * z + f32(1.33314422036e-1)
    p = p * z + f32(-3.33332819422e-1)
    far = f32(1) - f32(2) / (exponential(f32(2) * abs(x)) + f32(1))
    return x + x * z * p if z < f32(0.390625) else (far if x > 0 else -far)


@compiled
def error_function(x: Any) -> Any:
    """erf as a quotient of polynomials, good to about 4e-7 (the coefficients that Eigen uses)."""
    x = f32(4) if x > f32(4) else x
    x = f32(-4) if x < f32(-4) else x
    z = x * x
    p = f32(-2.72614225801306e-10) * z + f32(2.77068142495902e-08)
    p = p * z + f32(-2.10102402082508e-06)
    p = p * z + f32(-5.69250639462346e-05)
    p = p * z + f32(-7.34990630326855e-04)
    p = p * z + f32(-2.95459980854025e-03)
    p = p * z + f32(-1.60960333262415e-02)
    q = f32(-1.45660718464996e-05) * z + f32(-2.13374055278905e-04)
    q = q * z + f32(-1.68282697438203e-03)
    q = q * z + f32(-7.37332916720468e-03)
    q = q * z + f32(-1.42647390514189e-02)
    return x * p / q


@compiled
def root(x: Any) -> Any:
    """The square root, which is one instruction."""
    return np.sqrt(x)


ARITHMETIC = SimpleNamespace(
    f32=f32, exponential=exponential, tangent=tangent, error_function=error_function, root=root
)


def _chosen(functions: Sequence[Callable[..., Any]]) -> Any:
    """One function of (number, x, slope) for several of (x, slope): numba has no table of functions to call."""
    first, rest = compiled(functions[0]), functions[1:]
    if not rest:
        return compiled(lambda number, x, slope: first(x, slope))
    others = _chosen(rest)
    return compiled(lambda number, x, slope: first(x, slope) if number == 0 else others(number - 1, x, slope))


activation = _chosen([operation.kernel(ARITHMETIC) for operation in ACTIVATIONS])
