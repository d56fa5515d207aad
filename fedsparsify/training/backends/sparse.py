"""Convolutional networks on a CPU, by kernels whose cost falls with the sparsity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock

import numpy as np
import torch
from torch import nn

from ... import arrays
from ...methods import Fit, Request, Update
from ...model import SparseModel
from ...native.machine import lanes_here
from ...notices import notice
from ..flat import FlatModule, channels_last_order
from ..freed_memory import keep_freed_memory
from ..graph_layers import NotPlanned
from ..native.conv.network import SparseNetwork, SurvivorModels
from ..native.conv.plan import read_plan
from ..native.conv.planes import Planes, output_shape
from ..native.conv.program import Program
from ..native.conv.streams import Streams
from ..native.kernel_code import CONVOLUTIONS
from ..worker import Worker
from .autograd import draws_from_torch
from .base import Setup, on_thread_pool

# The share of a step's products up to which the kernels are faster than autograd, whose dense products are nearer to
# the machine's peak.
BREAK_EVEN = 0.85


class Sparse:
    """One thread per core. Models that are too dense for the kernels are trained by autograd, with channels last.

    Which of both trains a model depends on its mask and the batch size alone, so that a run can be repeated.
    """

    name, checked = "sparse", True

    def __init__(self, setup: Setup, lanes: int = 0) -> None:
        self._setup, self._lanes = setup, lanes or lanes_here()
        self._plan = read_plan(setup.module, setup.layout, setup.samples.x.shape[1:])
        self._planes = Planes(self._plan, self._lanes)
        (self._run,) = CONVOLUTIONS(self._lanes)
        self._always = False  # whether the kernels train dense models too
        self._programs: dict[int, Program] = {}  # by job slot
        self._networks: dict[int, tuple[Streams, FlatModule]] = {}
        self._dense: dict[int, FlatModule] = {}
        self._scoring: dict[int, FlatModule] = {}
        self._last: tuple[np.ndarray, Streams] | None = None  # the last mask, and its streams
        self._building = Lock()

    @classmethod
    def refusal(cls, setup: Setup) -> str | None:
        """Takes the networks that `plan.py` can read, on a CPU."""
        if not setup.on_cpu:
            return "it trains on a CPU"
        if why := setup.several_inputs():
            return why
        try:
            read_plan(setup.module, setup.layout, setup.samples.x.shape[1:])
        except NotPlanned as error:
            return str(error)
        if draws_from_torch(setup):
            return "the network draws from torch's own random generator"
        try:
            CONVOLUTIONS(lanes_here())
        except ImportError as error:
            notice(f"this network is not trained by the sparse back end: {error} A slower one takes its place.")
            return str(error)
        return None

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""
        threads = torch.get_num_threads() if len(workers) == 1 else 1  # that autograd would use for one client

        def train(slot: int, worker: Worker, request: Request) -> Update:
            lent = worker.network
            try:
                if not isinstance(request, Fit):
                    worker.network = self._plain(slot)
                    return worker.answer(request)
                if self.takes(request.model, threads):
                    return self._by_kernels(slot, worker, request)
                return self._by_autograd(slot, worker, request)
            finally:
                worker.network = lent

        return on_thread_pool(train, workers, requests)

    @contextmanager
    def kernels_only(self) -> Iterator[None]:
        """Within the block, the kernels train dense models too."""
        self._always = True
        try:
            yield
        finally:
            self._always = False

    def takes(self, model: SparseModel, threads: int = 1) -> bool:
        """Whether the kernels on one thread train a model faster than autograd on some, by the products of a step."""
        if self._always:
            return True
        lanes, batch = self._lanes, min(self._setup.training.batch_size, len(self._setup.samples.y))
        mask, slices = model.host_mask, self._setup.layout.slices
        ours = theirs = 0
        for layer in self._plan.convolutions:
            _, rows, columns = output_shape(layer, self._plan.shapes)
            kept = mask[slices[layer.weight]]
            ours += rows * columns * int(np.count_nonzero(kept)) * -(-batch // lanes) * lanes
            theirs += rows * columns * kept.size * batch
        return ours * threads <= BREAK_EVEN * theirs

    def _plain(self, slot: int) -> FlatModule:
        """A copy of the network for requests that ask for scores."""
        if slot not in self._scoring:
            self._scoring[slot] = self._setup.flat()
            self._scoring[slot].draws = False
        return self._scoring[slot]

    def _by_autograd(self, slot: int, worker: Worker, request: Fit) -> Update:
        """Train a dense model, with the channels of its images and weights last."""
        layout = self._setup.layout
        if slot not in self._dense:
            keep_freed_memory()
            network = FlatModule(self._setup.make(), self._setup.device, channels_last=True)
            network.draws = False
            network.module.register_forward_pre_hook(_channels_last)
            self._dense[slot] = network
        models = SurvivorModels(layout, channels_last_order(layout).numpy(), layout)
        return _reordered(worker, request, self._dense[slot], models)

    def _by_kernels(self, slot: int, worker: Worker, request: Fit) -> Update:
        """Train the survivors as a model of their own."""
        streams = self._streams(request.model.on_host().host_mask)
        models = SurvivorModels(self._setup.layout, streams.positions)
        return _reordered(worker, request, self._network(slot, streams), models)

    def _streams(self, mask: np.ndarray) -> Streams:
        """The streams of a mask; those of the last one are kept, as all clients of a round share it."""
        with self._building:
            if self._last is None or not np.array_equal(self._last[0], mask):
                self._last = mask, Streams(self._planes, self._setup.layout, mask)
            return self._last[1]

    def _network(self, slot: int, streams: Streams) -> FlatModule:
        """The network under a mask, in the memory of a job slot."""
        known = self._networks.get(slot)
        if known is None or known[0] is not streams:
            if slot not in self._programs:
                batch = min(self._setup.training.batch_size, len(self._setup.samples.y))
                self._programs[slot] = Program(self._planes, self._setup.layout, batch, self._run)
            program = self._programs[slot]
            program.bind(streams)
            network = SparseNetwork(self._plan, program, streams, self._setup.module)
            known = self._networks[slot] = streams, FlatModule(network, self._setup.device)
            known[1].draws = False
        return known[1]


def _reordered(worker: Worker, request: Fit, network: FlatModule, models: SurvivorModels) -> Update:
    """The worker's answer, trained as the model that `models` makes of the request's."""
    model = request.model.on_host()
    worker.network = network
    worker.optimizer = {
        name: value if name == "steps" else torch.from_numpy(models.pick(value.numpy()))
        for name, value in worker.optimizer.items()
    }
    linear = None if request.linear is None else models.pick(arrays.to_numpy(request.linear))
    update = worker.answer(replace(request, model=models.model(model), linear=linear))
    worker.optimizer = {
        name: value if name == "steps" else torch.from_numpy(models.spread(value.numpy()))
        for name, value in worker.optimizer.items()
    }
    weights = arrays.placed(models.whole(update.model), request.model.weights)
    return replace(update, model=request.model.with_weights(weights, update.model.finite))


def _channels_last(_: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Images with their channels last: convolutions of dense models are faster so."""
    return tuple(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x for x in given)
