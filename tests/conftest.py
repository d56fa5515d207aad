from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsparsify.__main__ import main
from fedsparsify.methods import METHODS
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.native.machine import lanes_here
from fedsparsify.stopping import SIGNALS

# Methods that differ from another by a number or a formula at the server; `make long` runs them too.
TWINS = {"fedavg-mfl", "fedavgm", "fedyogi", "fedadagrad", "random", "oneshot", "grasp"}
EVERY_METHOD = [pytest.param(name, marks=pytest.mark.slow) if name in TWINS else name for name in METHODS]

# Kernels of other widths than this machine's take longer to compile than their tests to run; `make long` has them.
every_width = pytest.mark.parametrize(
    "lanes", [pytest.param(lanes, marks=() if lanes == lanes_here() else pytest.mark.slow) for lanes in (16, 8, 4)]
)

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


def kernel_model(*tensors, masks=None) -> SparseModel:
    """A model of several shaped tensors, for literal tests; what has two dimensions is a weight tensor."""
    arrays = [np.asarray(tensor, np.float32) for tensor in tensors]
    layout = Layout(tuple(TensorSpec(f"t{number}", array.shape) for number, array in enumerate(arrays)))
    keep = [np.ones(a.shape) for a in arrays] if masks is None else masks
    flat, mask = (np.concatenate([np.ravel(part) for part in parts]) for parts in (arrays, keep))
    return SparseModel(layout, flat, mask.astype(np.bool_))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Stand in an empty folder; modules that were imported from it are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a command adds the folder that it stands in
    yield tmp_path
    for name, module in [*sys.modules.items()]:
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def here(elsewhere, monkeypatch, capsys):
    """The command in this process, as starting torch takes seconds: exit code and what was said on either stream."""
    monkeypatch.setenv("COLUMNS", "120")

    def play(*words):
        monkeypatch.setattr(sys, "argv", ["fedsparsify", *map(str, words)])
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            with pytest.raises(SystemExit) as done:
                main()
            assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_IGN}  # the interpreter is to end
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        said = capsys.readouterr()
        return done.value.code or 0, said.out, said.err

    return play


def pytest_configure() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


KERNELS = (
    "from fedsparsify.inference.runtime.native_calls import INFERENCE_CODE as code",
    "from fedsparsify.inference.runtime.native_calls import INT8_CODE as code",
    "from fedsparsify.training.native.kernel_code import PERCEPTRONS as code",
    "from fedsparsify.training.native.kernel_code import CONVOLUTIONS as code",
)


# A shell starts background jobs with SIGINT ignored, and processes inherit it: tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    """Have this machine's kernels compiled before any test: compiling is announced, where tests expect no notice."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    end = "; from fedsparsify.native.machine import lanes_here; code(lanes_here())"
    started = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", line + end]) for line in KERNELS]
    for process in started:
        process.wait()
