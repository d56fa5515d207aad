"""Activations other than clamps, in plain arithmetic (see native/exponential.py): the kernels of their operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...native.compiled import compiled
from ...native.exponential import ROUNDING, exponential
from ...native.pointers import bits_of, float_of, floats
from ...ops import ACTIVATIONS

f32 = np.float32


@compiled
def bounded_exponential(x: Any) -> Any:
    """e to the x from 2^-126 to 2^126, to about 1e-6: a quarter less work than the exact one (Cephes' exp2f)."""
    x = x * f32(1.44269504088896341)
    x = f32(-126) if x < f32(-126) else x
    x = f32(126) if x > f32(126) else x
    turned = x + ROUNDING
    r = x - (turned - ROUNDING)
    p = f32(1.535336188319500e-4) * r + f32(1.339887440266574e-3)
    p = p * r + f32(9.618437357674640e-3)
    p = p * r + f32(5.550332471162809e-2)
    p = p * r + f32(2.402264791363012e-1)
    p = p * r + f32(6.931472028550421e-1)
    return float_of(bits_of(p * r + f32(1)) + (bits_of(turned) << 23))


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
def logarithm(x: Any) -> Any:
    """The natural logarithm: an exponent, and a polynomial of what it leaves from 0.7 to 1.4 (Cephes' logf)."""
    small = x < f32(1.17549435e-38)  # the least number with an exponent of its own
    bits = bits_of(x * f32(8388608) if small else x)
    m = float_of((bits & 0x007FFFFF) | 0x3F800000)
    e = f32((bits >> 23) - (150 if small else 127))
    above = m > f32(1.41421356)
    r = (m * f32(0.5) if above else m) - f32(1)
    e = e + f32(1) if above else e
    p = f32(7.0376836292e-2) * r + f32(-1.1514610310e-1)
    p = p * r + f32(1.1676998740e-1)
    p = p * r + f32(-1.2420140846e-1)
    p = p * r + f32(1.4249322787e-1)
    p = p * r + f32(-1.6668057665e-1)
    p = p * r + f32(2.0000714765e-1)
    p = p * r + f32(-2.4999993993e-1)
    p = p * r + f32(3.3333331174e-1)
    z = r * r
    value = r + (p * r * z - f32(2.12194440e-4) * e - f32(0.5) * z) + f32(0.693359375) * e
    value = value if x < f32(np.inf) else x  # infinity, and what is no number
    return value if x > 0 else (f32(-np.inf) if x == 0 else f32(np.nan))


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
    f32=f32,
    exponential=exponential,
    bounded_exponential=bounded_exponential,
    tangent=tangent,
    error_function=error_function,
    logarithm=logarithm,
    root=root,
)


def _chosen(functions: Sequence[Callable[..., Any]]) -> Any:
    """One kernel for several functions of (x, slope), of which a row's number names one: each has loops of its own.

    A loop that chooses inside does not become vector code, and numba has no table of functions to call.
    """
    function, rest = compiled(functions[0]), functions[1:]
    others: Any = _chosen(rest) if rest else None

    @compiled
    def first(width: Any, op: Any, arena: Any) -> None:
        for c in range(op.channels):
            for i in range(op.rows):
                source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
                target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
                for lane in range(op.columns * len(width)):
                    target[lane] = function(source[lane], op.slope)

    def one(width: Any, number: Any, op: Any, arena: Any) -> None:
        first(width, op, arena)

    def some(width: Any, number: Any, op: Any, arena: Any) -> None:
        if number == 0:
            first(width, op, arena)
        else:
            others(width, number - 1, op, arena)

    return compiled(some if rest else one)


_activations = _chosen([operation.kernel(ARITHMETIC) for operation in ACTIVATIONS])


@compiled
def activate(width: Any, op: Any, arena: Any) -> None:
    """An activation other than a clamp."""
    _activations(width, op.activation, op, arena)
