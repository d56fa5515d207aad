"""What this machine's vectors hold."""

from __future__ import annotations

from llvmlite import binding


def lanes_here() -> int:
    """Floats in the widest vector: 16 with AVX-512, 8 with AVX2, else 4."""
    features = binding.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") and features.get("fma") else 4
