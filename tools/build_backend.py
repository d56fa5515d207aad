"""setuptools, and numba beside it where a wheel with compiled kernels is built (see setup.py)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

sys.path.insert(0, str(Path(__file__).parent))

from make_images import COMPILERS, wanted

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: Mapping[str, str] | None = None) -> list[str]:
    """What must be installed before a wheel is built."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *(COMPILERS if wanted() else [])]
