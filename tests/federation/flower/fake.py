"""A grid inside this process: the same messages and the same client app, without Flower's processes between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedsparsify.config import RunConfig
from fedsparsify.federation.flower.client_app import app
from fedsparsify.federation.flower.messages import Answer, Question
from fedsparsify.federation.flower.prepare import make_task
from fedsparsify.federation.flower.server_app import run_over_grid
from fedsparsify.federation.folder import RunFolder
from fedsparsify.federation.journal import Result

Behaviour = Callable[[Question, Callable[[], Answer]], "Iterable[Answer | RecordDict | Error]"]


def honest(question: Question, work: Callable[[], Answer]) -> Iterable[Answer]:
    """Answers once."""
    return [work()]


class FakeGrid:
    """Nodes 100, 101, … are the clients 0, 1, …; `behave` says what comes back for a question."""

    def __init__(self, folder: Path, settings: dict, clients: int, behave: Behaviour = honest) -> None:
        self.folder, self.settings, self.behave = folder, settings, behave
        self.clients: dict[int, int | None] = {100 + client: client for client in range(clients)}
        self.connected = set(self.clients)
        self.questions: list[Question] = []
        self.evaluations: list[Question] = []
        self.data: dict[int, str] = {}  # node → its own samples
        self.judge = lambda question, work: [work()]  # what comes back for a question to evaluate
        self._ids, self._ready = count(1), {}
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in a ServerApp's process

    def get_node_ids(self) -> list[int]:
        return sorted(self.connected)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._take(message) for message in messages]

    def _take(self, message: Message) -> str:
        id = f"message-{next(self._ids)}"
        message.metadata.__dict__["_message_id"] = id
        message.metadata.__dict__["_created_at"] = time.time()  # nodes here are asked one after another
        node = message.metadata.dst_node_id
        context = self._context(node)
        if message.metadata.message_type == MessageType.QUERY:
            self._ready[id] = [app(message, context)]
            return id
        question = Question.read(message.content)
        if message.metadata.message_type == MessageType.EVALUATE:
            self.evaluations.append(question)
            self._ready[id] = self.judge(question, lambda: app(message, context))
            return id
        self.questions.append(question)
        answers = self.behave(question, lambda: Answer.read(app(message, context).content))
        contents = [answer.content() if isinstance(answer, Answer) else answer for answer in answers]
        self._ready[id] = [Message(content, reply_to=message) for content in contents]
        return id

    def _context(self, node: int) -> Context:
        client = self.clients[node]
        named = {} if client is None else {"client": client}
        named |= {"data": self.data[node]} if node in self.data else {}
        return Context(1, node, {"folder": str(self.folder / str(node))} | named, RecordDict(), self.settings)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for id in message_ids for reply in self._ready.pop(id, [])]


def play(
    folder: Path, config: RunConfig, behave: Behaviour = honest, resume: bool = False, **waiting: float
) -> tuple[Result, FakeGrid]:
    """A run over a fake grid."""
    settings = make_task(config, RunFolder(folder / "run")).settings() | waiting
    settings |= {"out": str(folder / "run"), "resume": resume}
    grid = FakeGrid(folder / "nodes", settings, config.clients, behave)
    return run_over_grid(grid, settings), grid
