"""The ClientApp that a SuperNode runs for `fedsparsify join`.

In: a message of the server. Out: its reply. Every message is a new process, so each loads only what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...errors import ConfigError
from .messages import Answer, Hello, Question
from .node_store import NodeStore
from .overdue import Overdue, until_overdue

if TYPE_CHECKING:
    from .client import Node

app = ClientApp()


def number_of(settings: Mapping[str, object]) -> int:
    """The number that a node was started with, in our word or Flower's; -1 where the server is to give it one."""
    number = settings.get("client", settings.get("partition-id", -1))
    if type(number) is not int:
        raise ConfigError(f"client must be a number. Received: {number!r}.")
    return number


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Say who this node is; without torch, as the first thing that a server asks."""
    from ... import __version__

    masks = b"".join(NodeStore.of(context.node_config, context.node_id).names())
    return Message(Hello(number_of(context.node_config), masks, __version__).content(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a question."""
    question = Question.read(message.content)
    try:
        with until_overdue(message.metadata.created_at, question.seconds):
            answer = _node(context).answer(question)
    except Overdue as error:
        answer = Answer(question.round, question.client, fault=str(error))
    return Message(answer.content(), reply_to=message)


def _node(context: Context) -> Node:
    from .client import Node
    from .task import Task

    task = Task.read(context.run_config)
    data = str(context.node_config.get("data", task.config.data))
    device = str(context.node_config.get("device", "cpu"))
    return Node(task, NodeStore.of(context.node_config, context.node_id), data, device)
