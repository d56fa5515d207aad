"""The GPU's kernels: on a GPU where there is one, else under triton's interpreter (`make kernels`)."""

from __future__ import annotations

import os

import pytest
import torch
from check_kernels import DEVICE, NOT_TAKEN, STEPS, TRAININGS, check_step, check_training

from fedsparsify.training.graph_layers import NotPlanned

pytestmark = pytest.mark.kernels


@pytest.fixture(autouse=True)
def ready(monkeypatch):
    if DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("there is no GPU: `make kernels` sets TRITON_INTERPRET=1")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # the reference in full precision


@pytest.mark.parametrize("name", STEPS)
def test_a_step_equals_autograd(name):
    check_step(STEPS[name])


@pytest.mark.parametrize("name", TRAININGS)
def test_rounds_equal_a_client_alone(name):
    check_training(TRAININGS[name])


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_what_the_kernels_do_not_compute_is_left_to_torch(name):
    from fedsparsify.training.gpu.plan import read_plan

    make, shape = NOT_TAKEN[name]
    make()(torch.zeros(2, *shape))  # it is a network for such samples
    with pytest.raises(NotPlanned):
        read_plan(make(), shape)
