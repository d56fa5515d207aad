"""A few graphs of the fuzzer: see tests/fuzz/fuzz_engine.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedsparsify.native import codegen

FUZZER = Path(__file__).parent.parent / "fuzz" / "fuzz_engine.py"


@pytest.mark.skipif(not codegen.LINKED, reason="guard pages are made on Linux only")
def test_random_graphs_under_guard_pages() -> None:
    ended = subprocess.run([sys.executable, FUZZER, "30", "--seed", "3"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert int(ended.stdout.split(" ran")[0]) > 20
