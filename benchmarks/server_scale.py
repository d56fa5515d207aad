"""A round of a thousand clients at the server: seconds per client, and memory while answers come in.

    python benchmarks/server_scale.py [--clients 1000] [--rounds 2] [--sparsity 0.9]

The server is the real one (`Networked`, `run_rounds`), and so are messages and blobs. The grid is in this process, and
a client "trains" by scaling the model that it was sent: what is measured is the server. An answer is made when it is
pulled, as it would come from a network. Memory is this process's resident size, after each tenth of the answers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import torch
from flwr.app import Message, MessageType
from flwr.supercore.task_identity import TaskIdentity

import fedsparsify
from fedsparsify import RunConfig, load_dataset
from fedsparsify.federation.flower.messages import Answer, Hello, Question
from fedsparsify.federation.flower.serve_settings import ServeSettings
from fedsparsify.federation.flower.server import Networked
from fedsparsify.federation.known_masks import KnownMasks
from fedsparsify.federation.rounds import run_rounds
from fedsparsify.methods import Update
from fedsparsify.model import Layout, SparseModel
from fedsparsify.wire.codec import decode, encode, mask_name


def perceptron(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """1.6 million parameters with hidden layers of 1,230."""
    inputs = int(torch.tensor(shape).prod())
    layers = [torch.nn.Linear(inputs, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU()]
    return torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(HIDDEN, classes))


HIDDEN = 1230


def resident() -> float:
    """MB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


class Clients:
    """A grid of clients that all hold the last mask. Their work is kept apart from the server's time."""

    def __init__(self, clients: int) -> None:
        self.clients, self._ids, self.spent = clients, count(1), 0.0
        self._waiting: dict[str, Message] = {}
        self._known: dict[bytes, object] = {}
        self._model: tuple[bytes, SparseModel] | None = None
        self._layout: Layout | None = None
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_node_ids(self) -> list[int]:
        """Every client's node."""
        return list(range(100, 100 + self.clients))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take questions; they are answered when somebody asks for the answers."""
        ids = []
        for message in messages:
            ids.append(f"message-{next(self._ids)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._waiting[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these questions."""
        began = time.perf_counter()
        found = [self._answer(self._waiting.pop(id)) for id in message_ids if id in self._waiting]
        self.spent += time.perf_counter() - began
        return found

    def _answer(self, message: Message) -> Message:
        client = message.metadata.dst_node_id - 100
        if message.metadata.message_type == MessageType.QUERY:
            return Message(Hello(client, b"".join(self._known), fedsparsify.__version__).content(), reply_to=message)
        question = Question.read(message.content)
        if self._model is None or self._model[0] is not question.model:
            model = decode(question.model, next(iter(self._known.values()), None), self._layout)
            self._known = {mask_name(model.layout, model.host_mask): model.host_mask}
            self._model, self._layout = (question.model, model), model.layout
        model = self._model[1]
        trained = SparseModel.masked(model.layout, model.weights * (1 + 0.001 * (client % 7)), model.mask)
        blob = encode(trained, model.host_mask, layout_known=True)
        return Message(Answer(question.round, question.client, 60, 1.0, 0.1, blob).content(), reply_to=message)


class Measured(Networked):
    """The server, with its memory after each tenth of the answers."""

    def ask(self, *question: object) -> Iterator[Update]:
        """The answers, as they come."""
        sizes = []
        for number, update in enumerate(super().ask(*question), 1):  # type: ignore[arg-type]
            yield update
            if number % max(1, self._config.clients // 10) == 0:
                sizes.append(resident())
        print("  MB by tenths:", " ".join(f"{size:.0f}" for size in sizes), flush=True)


def main() -> None:
    """Play the rounds and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sparsity", type=float, default=0.9, help="from the first round on; 0: dense")
    told = parser.parse_args()
    method = {"name": "fedsparsify-global", "sparsity": told.sparsity, "every": 1} if told.sparsity else "fedavg"
    config = RunConfig(
        method=method, network="server_scale:perceptron", clients=told.clients, rounds=told.rounds, data="digits"
    )
    dataset = load_dataset("digits")
    clients = Clients(told.clients)
    federation = Measured(config, dataset, clients, KnownMasks(), ServeSettings(deadline=3600))  # type: ignore[arg-type]
    model = federation.initial()
    print(f"{told.clients} clients, {model.layout.total:,} parameters, before: {resident():.0f} MB")
    rounds = run_rounds(federation, config.method, model, 1, config.rounds, config.seed)
    while True:
        clients.spent, began = 0.0, time.perf_counter()
        try:
            _, entry = next(rounds)
        except StopIteration:
            return
        seconds = time.perf_counter() - began - clients.spent
        entry = federation.with_network_facts(entry)
        sent = ((entry.download_bytes or 0) + (entry.upload_bytes or 0)) / 1e6
        print(
            f"round {entry.round}: {entry.clients} answers, {entry.nonzero:,} parameters left, {sent:,.0f} MB, "
            f"{seconds:.1f} s = {1e3 * seconds / told.clients:.1f} ms per client at the server",
            flush=True,
        )


if __name__ == "__main__":
    main()
