"""The GPU's kernels, under triton's interpreter where it is installed, and on the GPU where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def check(**environment):
    script = Path(__file__).with_name("check_kernels.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") >= 4


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
def test_kernels_equal_torch_func_under_the_interpreter():
    check(TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.gpu
def test_kernels_equal_torch_func_on_the_gpu():
    check()
