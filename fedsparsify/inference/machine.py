"""What this machine has."""

from __future__ import annotations

import os

from llvmlite import binding


def cores_here() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lanes_here() -> int:
    """Floats in the widest vector: 16 with AVX-512, 8 with AVX2, else 4."""
    features = binding.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") and features.get("fma") else 4
