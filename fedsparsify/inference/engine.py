"""Run a sparse model: numpy in, numpy out, no training framework.

The engine is a small compiler, one folder per stage: `frontend/` reads the graph into fused steps, `layout/` decides
how values lie in memory, `lowering/` chooses kernels and writes the program, `runtime/` runs it on threads, `kernels/`
hold the compiled code. `planner.py` leads from a batch's shape to programs; this file from a batch to logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, WireError
from ..graph import Node
from ..model import Floats, SparseModel, Survivors
from ..native.machine import cores_here, lanes_here
from ..preprocessing import Preprocessing
from ..wire.artefact import load, load_network_and_facts
from ..wire.graphs import parse_graph
from .frontend.network import Network
from .int8.parts import LEAST_BATCH, int8_parts
from .layout.memory_budget import MemoryBudget
from .lowering.kernel_choice import KERNEL_OPTIONS
from .planner import Planner
from .runtime.executor import Executor
from .runtime.native_calls import native_calls

LANES = (16, 8, 4)  # floats of a vector


class Engine(Executor):
    """A sparse model made ready to run. Threads may share it; equal batches give equal bits."""

    def __init__(
        self,
        model: str | Path | SparseModel,
        threads: int | None = None,
        graph: Sequence[Node] | None = None,
        lanes: int | None = None,
        kernels: str = "auto",
        max_memory: int | None = None,
    ) -> None:
        """Read a model.fsz, or take a model with the graph of its network.

        Args:
            model: a file, or a model whose `graph` is given.
            threads: that serve a batch; all cores where None.
            graph: what the network computes, where the file does not say.
            lanes: floats in a vector, 16, 8 or 4, in place of the machine's.
            kernels: `auto`, `sparse` or `dense`.
            max_memory: bytes that the engine may take for prepared weights, working memory of all threads, outputs and
                converted inputs; half of the machine's memory where None. What would need more is a ModelError.

        Raises:
            WireError: if the file is damaged, or does not say what its network computes.
            ModelError: if the network does not fit into `max_memory`, or a setting is unknown.

        Example:
            >>> from fedsparsify import Engine, RunConfig, load_dataset, run
            >>> run(RunConfig(rounds=1, epochs=1, clients=2)).save("model.fsz")
            >>> engine = Engine("model.fsz", max_memory=2 * 10**9)
            >>> engine.run(load_dataset("digits").x_test).shape
            (355, 10)
        """
        started = perf_counter()
        self._prepared: object = None  # how raw bytes become samples, as the file says it
        quantised: object = None  # what is computed in whole numbers, as the file says it
        if isinstance(model, SparseModel) and graph is None:
            raise ModelError("a SparseModel alone does not say what its network computes; give the graph too.")
        if graph is None:
            assert not isinstance(model, SparseModel)
            tensors: Mapping[str, Floats | Survivors]
            graph, tensors, facts = load_network_and_facts(model)
            self._prepared, quantised = facts.get("preprocessing"), facts.get("int8")
        else:
            whole = model if isinstance(model, SparseModel) else load(model)
            graph, tensors = _checked(graph, whole), whole.host_tensors()
        self.lanes = lanes or lanes_here()
        if self.lanes not in LANES:
            raise ModelError(f"lanes are one of {', '.join(map(str, LANES))}. Received: {lanes!r}.")
        memory = MemoryBudget(max_memory)
        if kernels not in KERNEL_OPTIONS:
            raise ModelError(f"kernels are one of {', '.join(KERNEL_OPTIONS)}. Received: {kernels!r}.")
        self.kernels, count = kernels, threads or cores_here()
        planner = Planner(Network(graph, tensors, memory), count, self.lanes, kernels, memory)
        super().__init__(native_calls(self.lanes), planner, count, memory)
        whole_numbers = quantised is not None and kernels == "auto"
        self._parts = int8_parts(quantised, graph, tensors, count, self.lanes, memory) if whole_numbers else []
        self.load_seconds = perf_counter() - started
        self.first_run_seconds: float | None = None

    def run(self, batch: Any) -> Floats:
        """Outputs for a batch: (images, …) → (images, classes).

        Floats are taken as they are. Bytes (uint8) are prepared as raw samples were in training, if the engine was made
        from a file that says how: divided by 255, for most data.

        Args:
            batch: an array of one or more samples, with the batch as its first dimension.

        Returns:
            What the network gives for each sample, float32; of a classifier, logits.

        Raises:
            ModelError: if the batch does not fit the network, or needs more than `max_memory`.
        """
        started = perf_counter()
        x = batch if type(batch) is np.ndarray else _array(batch)
        flags = x.flags
        ready = x.dtype == np.float32 and flags.c_contiguous and flags.aligned
        if not ready and x.dtype.kind not in "fiub":
            raise ModelError(f"a batch holds real numbers. Received: an array of {x.dtype}.")
        executors = self._executors(x.shape)
        executors[0].plan(x.shape)
        if not ready:
            raw = x.dtype == np.uint8 and self._prepared is not None
            self._memory.expect((12 if raw else 4) * x.size, "a copy of the batch as float32")
            x = Preprocessing.read(self._prepared, x.shape[1])(x) if raw else x
            x = np.require(x, np.float32, ["C", "A"])
        y = x
        for executor in executors:
            y = executor.serve(y)
        if self.first_run_seconds is None:
            self.first_run_seconds = perf_counter() - started
        return y

    def explain(self, shape: tuple[int, ...]) -> str:
        """What the engine does with batches of a shape, stage by stage: steps, layout in memory, rows of the program.

        Args:
            shape: of a batch, (images, …).

        Returns:
            Text, one line per step, value and row.
        """
        texts = []
        for executor in self._executors(shape):
            texts.append(executor.explained(shape))
            shape = executor.plan(shape).output_shape
        return "\n".join(texts)

    def _executors(self, shape: tuple[int, ...]) -> list[Executor]:
        """What serves batches of a shape, one after the other: few samples are served in float."""
        return self._parts if self._parts and shape and shape[0] >= LEAST_BATCH else [self]

    @property
    def max_memory(self) -> int:
        """Bytes that the engine may take."""
        return self._memory.limit


def _checked(graph: Sequence[Node], model: SparseModel) -> tuple[Node, ...]:
    """A graph that did not come from a file, held to the same rules."""
    try:
        return parse_graph([node.to_json() for node in graph], model.layout)
    except WireError as error:
        raise ModelError(str(error)) from None


def _array(batch: Any) -> NDArray[Any]:
    """Anything that numpy sees as an array."""
    try:
        made = np.asarray(batch)
    except (ValueError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise ModelError(f"a batch is one array of numbers, (images, …): {error}") from None
    if np.ma.isMaskedArray(batch):
        raise ModelError("a batch is an array without masked values. Received: a masked array.")
    return made
