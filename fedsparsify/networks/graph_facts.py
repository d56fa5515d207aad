"""What a model's file says of its network: a graph that was compared with the module, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from ..errors import ModelError
from ..graph import Node
from ..inference.frontend.network import Network as EngineNetwork
from ..model import SparseModel, Survivors
from ..notices import notice
from ..ops.base import Untraceable
from . import model_of
from .replay import difference
from .state_facts import state_facts
from .tracing import trace


class Network(Protocol):
    """A module that can take a model's values over."""

    module: nn.Module
    device: torch.device

    def load(self, model: SparseModel) -> None:
        """Take them over."""


@dataclass(frozen=True)
class GraphFacts:
    """The graph of a network, samples to compare it with the network on, and the rest of the state dict."""

    graph: tuple[Node, ...]  # empty where there is none
    missing: str  # why there is none
    probe: Any  # a batch of samples
    state: dict[str, object]

    @classmethod
    def of(cls, module: nn.Module, probe: Any) -> GraphFacts:
        """Trace a network. A notice says what will not be possible with its file."""
        module, model = module.eval(), model_of(module)
        state = state_facts(module)
        try:
            if not isinstance(probe, torch.Tensor):
                raise Untraceable("the network takes several inputs")
            graph = trace(module, sample=tuple(probe.shape[1:]))
            if why := difference(module, graph, _tensors(model), probe):
                raise Untraceable(why)
        except Untraceable as error:
            notice(f"the model's file will have no graph, so that it cannot be exported or run without torch: {error}.")
            return cls((), str(error), probe, state)
        try:
            nothing = np.zeros(0, np.int64), np.zeros(0, np.float32)  # shapes are all that matters here
            empty = {spec.name: Survivors(spec.shape, *nothing) for spec in model.layout}
            EngineNetwork(graph, empty).fused(tuple(probe.shape[1:]))
        except ModelError as error:
            notice(f"the engine will not run this network, though it can be exported: {error}")
        return cls(graph, "", probe, state)

    def of_model(self, network: Network, model: SparseModel) -> dict[str, object]:
        """What the file of a trained model says: the graph, if it gives the network's logits with these weights too."""
        missing = self.missing
        if self.graph:
            network.load(model)
            network.module.eval()
            tensors = {name: tensor.to(network.device) for name, tensor in _tensors(model.on_host()).items()}
            if why := difference(network.module, self.graph, tensors, self.probe.to(network.device)):
                notice(f"the model's file has no graph, so that it cannot be exported or run without torch: {why}.")
                missing = why
        graph = {"graph_missing": missing} if missing else {"graph": [node.to_json() for node in self.graph]}
        return graph | self.state


def _tensors(model: SparseModel) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(tensor) for name, tensor in model.tensors().items()}
