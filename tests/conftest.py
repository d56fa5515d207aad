from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedsparsify.model import Layout, SparseModel, TensorSpec

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder beside the checkout with the paper and the data; tests that need it are skipped without it."""
    if not SHARED.exists():
        pytest.skip("../shared is not here")
    return SHARED


def small_model(weights, mask=None, statistics=()) -> SparseModel:
    """A model of one flat tensor, for literal tests."""
    flat = np.asarray([*weights, *statistics], np.float32)
    layout = Layout((TensorSpec("w", (len(weights),)),), (TensorSpec("s", (len(statistics),)),) if statistics else ())
    keep = np.ones(len(weights), np.bool_) if mask is None else np.asarray(mask, np.bool_)
    return SparseModel(layout, flat, keep)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Stand in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pytest_configure() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
