"""The GPU's kernels: on a GPU where there is one, else under triton's interpreter (`make kernels`)."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from check_kernels import DEVICE, NOT_TAKEN, RESIDUAL, STEPS, TRAININGS, check_step, check_training, filled

from fedsparsify import RunConfig
from fedsparsify.methods import Fit
from fedsparsify.training.backends import Setup, stacked
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.graph_layers import NotPlanned
from fedsparsify.training.worker import Samples, Worker

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


def test_requests_of_every_kind_beside_each_other(monkeypatch):
    """Plain requests, powers and pruned inputs are groups of their own; stacks share nothing that a step leaves."""
    monkeypatch.setattr(stacked, "cores_here", lambda: 1)  # the interpreter knows no threads
    x = np.random.default_rng(0).normal(size=(12, 3, 3, 3)).astype(np.float32)
    samples, training = Samples.on(DEVICE, x, np.arange(12) % 4), RunConfig(epochs=1, batch_size=4, lr=0.1)
    backend = stacked.Gpu(Setup(RESIDUAL, samples, training, DEVICE))
    start = filled(RESIDUAL(), 0)
    start = start.under(np.arange(start.layout.trainable) % 3 > 0)
    requests = [Fit(start, power=1.25), Fit(start), Fit(start, prune_inputs=True), Fit(start, power=1.25)]
    for round in (1, 2):

        def worker(client, round=round):
            return Worker(FlatModule(RESIDUAL(), DEVICE), samples, np.arange(client, 12), training, round, client)

        together = backend.fit([worker(client) for client in range(4)], requests)
        for client, request in enumerate(requests):
            alone = worker(client).fit(request)
            assert together[client].model.weights == pytest.approx(alone.model.weights, abs=1e-4)
