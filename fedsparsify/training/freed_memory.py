"""Memory that a training step frees stays with the process, as the next step needs as much again.

glibc gives large blocks back to the system, which clears their pages anew in every step: 5 to 8 % of a dense one.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
KEPT_BYTES, MAPPED_BYTES = 1 << 30, 32 << 20  # free bytes that are kept; blocks from which on each is mapped alone


def keep_freed_memory() -> None:
    """Set the thresholds of glibc's malloc; of no effect with another one."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function; Windows has no process-wide handle
        return
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
