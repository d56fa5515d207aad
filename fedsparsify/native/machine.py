"""What this machine has."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from .levels import Level, levels_of

LINUX_X86_64 = sys.platform == "linux" and os.uname().machine == "x86_64" and sys.maxsize > 2**32
# Of features that LLVM calls by another name.
LINUX_NAMES = {"bmi": "bmi1", "lzcnt": "abm", "avx512vnni": "avx512_vnni", "avxvnni": "avx_vnni"}
UNKNOWN_MEMORY = 4 << 30  # bytes, where the system does not say


def cores_here() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def levels_here() -> list[Level]:
    """The levels of kernels that this processor runs, best first."""
    return levels_of(_features())


def lanes_here() -> int:
    """Floats in the widest vector: 16 with AVX-512, 8 with AVX2, else 4."""
    return levels_here()[0].lanes


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

    return {LINUX_NAMES.get(name, name) for name, has in binding.get_host_cpu_features().items() if has}


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
