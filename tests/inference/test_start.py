"""What happens before the first batch: imports and compilation."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedsparsify.inference import compiled as module
from fedsparsify.inference.machine import lanes_here


def test_the_engine_needs_no_training_framework() -> None:
    code = (
        "import sys, fedsparsify.inference; "
        "sys.exit(bool({'torch', 'matplotlib', 'click', 'rich', 'pooch', 'onnx'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_a_folder_to_write_to_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.njit

    def refusing(cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(module, "njit", refusing)
    assert module.compiled(lambda x: x + 1)(np.float32(1)) == 2


def test_what_is_kept_is_bound_to_all_the_sources() -> None:
    def twice(x: Any) -> Any:
        return 2 * x

    made = module.compiled(twice)
    assert made(np.float32(2)) == 4
    assert made._cache._cache_file._source_stamp == module.STAMP


def test_the_machine_has_vectors() -> None:
    assert lanes_here() in (16, 8, 4)
