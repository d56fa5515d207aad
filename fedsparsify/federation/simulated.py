"""A federation inside one process: clients are slices of one data set.

In: a method's question for a round. Out: every participant's update, trained by the environment's cohort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from ..config import RunConfig
from ..data import Dataset, partition
from ..data.holdout import hold_out
from ..data.partition import Indices
from ..errors import DataError
from ..methods import Method, Update, ask_client, check_fits, cohort_of, until_diverged
from ..model import SparseModel
from ..networks import model_of
from ..notices import notice
from ..state import State, under
from ..training.client_evaluation import evaluate_clients
from ..training.flat import FlatModule
from ..training.step_times import step_times
from ..training.worker import Evaluation, Samples, Worker, evaluate, loss_and_gradient
from .checks import check_batches
from .client_views import ClientEvaluation, seen_by_clients
from .diagnosis import Probed
from .environment import Environment, build_for, objective_for, participants

PROBE_SAMPLES = 1000


class Simulated:
    """All clients of a run on this machine, trained as one cohort."""

    def __init__(self, config: RunConfig, dataset: Dataset, environment: Environment | None = None) -> None:
        self._config = config
        self._dataset = dataset
        self.environment = environment or Environment(config, dataset)
        self._device = self.environment.device
        whole = partition(dataset.y_train, config.clients, config.split, config.seed, dataset.clients)
        self.parts, self._held = divided(whole, dataset, config)
        self.objective = objective_for(config, dataset)
        self._network = FlatModule(build_for(config, dataset), self._device)
        check_batches(self._network, config, self.parts, dataset)
        check_fits(config.method, model_of(self._network.module))
        self.kept: dict[int, State] = {}

    def initial(self) -> SparseModel:
        """The model that every run with this seed starts from."""
        return self.place(model_of(build_for(self._config, self._dataset)))

    def place(self, model: SparseModel) -> SparseModel:
        """The model where this federation trains: on a GPU it stays there from round to round."""
        return model if self._device.type == "cpu" else model.beside(self._network.weights)

    def ask(self, method: Method, round: int, model: SparseModel, sent: State | None = None) -> Iterator[Update]:
        """Every participant's answer; the cohort advances in lock-step, and all that train are one computation."""
        asked = participants(self._config, round, cohort_of(method, round))
        workers = [self._worker(round, client, model) for client in asked]
        contexts = [worker.context(self._dataset.classes, sent or {}) for worker in workers]
        clients = [until_diverged(ask_client(method, round, model, me)) for me in contexts]
        pending = {i: next(client) for i, client in enumerate(clients)}
        done: dict[int, Update] = {}
        while pending:
            fits = {i: request for i, request in pending.items() if request.trains}
            trained = self.environment.fit([workers[i] for i in fits], list(fits.values())) if fits else []
            answers = dict(zip(fits, trained, strict=True))
            answers |= {i: workers[i].answer(request) for i, request in pending.items() if i not in fits}
            pending = {}
            for i, answer in sorted(answers.items()):
                try:
                    pending[i] = clients[i].send(answer)
                except StopIteration as end:
                    done[i] = end.value
        for i, worker in enumerate(workers):
            update = done.pop(i)
            if (kept := worker.kept(update)) is not None:
                self.kept[worker.client] = kept
            yield replace(update, client=worker.client, state=None)

    def _worker(self, round: int, client: int, model: SparseModel) -> Worker:
        state = under(self.kept.get(client, {}), model)
        return Worker(self._network, self.environment.train, self.parts[client], self._config, round, client, state)

    def measure_times(self) -> str:
        """How long a training step takes here, as the setting `times` of a method names it."""
        return step_times(self._network, self.environment.train.x[: self._config.batch_size].clone())

    def graph_of(self, model: SparseModel) -> dict[str, object]:
        """What the file of a trained model says of its network."""
        return self.environment.graph.of_model(self._network, model)

    def evaluate(self, model: SparseModel) -> Evaluation:
        """How good the model is: on the data set's test samples, for each client on those it holds out, or both."""
        who, objective = self._config.evaluate, self.objective
        server = evaluate(self._network, model, self.environment.test, objective) if who != "clients" else None
        if server and who == "server":
            return server
        found = evaluate_clients(self._network, model, self.environment.train, self._held, objective)
        mine = {client: ClientEvaluation.of(self._held[client].size, one) for client, one in found.items()}
        return seen_by_clients(server, mine)

    def probe(self, model: SparseModel) -> Probed:
        """Loss and masked gradient on training samples that are the same in every round of the run."""
        rng = np.random.default_rng(np.random.SeedSequence([self._config.seed], spawn_key=(2,)))
        train = self.environment.train
        chosen = torch.from_numpy(rng.permutation(len(train.y))[:PROBE_SAMPLES]).to(self._device)
        loss, gradient = loss_and_gradient(
            self._network, model, Samples(train.x[chosen], train.y[chosen]), self.objective.loss
        )
        return Probed(loss, float(np.linalg.norm(gradient[model.on_host().mask].astype(np.float64))))


def divided(parts: Sequence[Indices], dataset: Dataset, config: RunConfig) -> tuple[list[Indices], dict[int, Indices]]:
    """The samples that each client trains on, and those that it holds out, for clients with at least two samples."""
    both = [hold_out(dataset.y_train, part, config.holdout, config.seed, client) for client, part in enumerate(parts)]
    held = {client: apart for client, (_, apart) in enumerate(both) if apart.size}
    if config.evaluate != "server":
        alone = [client for client in range(len(parts)) if client not in held]
        if not held:
            raise DataError(
                f"evaluate {config.evaluate!r} needs clients with at least two samples of {dataset.name}, one to train "
                f"on and one to hold out. Received: one per client. Use fewer clients."
            )
        if alone:
            named = ", ".join(map(str, alone[:10])) + " …" * (len(alone) > 10)
            count = f"{len(alone):,} of {len(parts):,} ({named})"
            notice(f"clients with one sample train on it and are not evaluated: {count}.")
    return [train for train, _ in both], held
