"""What this machine has."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

UNKNOWN_MEMORY = 4 << 30  # bytes, where the system does not say


def cores_here() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lanes_here() -> int:
    """Floats in the widest vector: 16 with AVX-512, 8 with AVX2, else 4."""
    features = _features()
    return 16 if "avx512f" in features else 8 if {"avx2", "fma"} <= features else 4


@cache
def processor() -> str:
    """The processor's name and what it can do, as Linux tells them; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    told = dict(line.partition(":")[::2] for line in reversed(lines))
    return " ".join(value for key, value in sorted(told.items()) if key.strip() in ("model name", "flags", "Features"))


def _features() -> set[str]:
    if known := processor():
        return set(known.split())
    from llvmlite import binding

    return {name for name, has in binding.get_host_cpu_features().items() if has}


def memory_here() -> int:
    """Bytes of memory that this process may use: the machine's, or its control group's where that is less."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        whole = UNKNOWN_MEMORY
    try:
        group = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        group = ""
    return min(whole, int(group)) if group.isdigit() else whole
