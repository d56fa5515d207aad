"""The exponential function in plain arithmetic.

Written out, since the kernels' machine code must not call into any library (see linking.py), and so that loops over it
become vector code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiled import compiled
from .pointers import bits_of, float_of

f32 = np.float32
ROUNDING = f32(12582912)  # 1.5 · 2²³: what is added to it keeps no fraction, and its last bits are the whole number


@compiled
def exponential(x: Any) -> Any:
    """e to the x: a power of two times a polynomial (Cody and Waite's reduction, coefficients of Cephes' expf)."""
    turned = x * f32(1.44269504088896341) + ROUNDING
    power = turned - ROUNDING
    r = x - power * f32(0.693359375) + power * f32(2.12194440e-4)
    p = f32(1.9875691500e-4) * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    value = (p * r * r + r + f32(1)) * float_of((bits_of(turned) + 127) << 23)
    value = f32(0) if x < f32(-87.33) else value
    return f32(np.inf) if x > f32(88.37) else value
