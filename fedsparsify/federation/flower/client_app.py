"""The ClientApp that a SuperNode runs for `fedsparsify join`.

In: a message of the server. Out: its reply. Every message is a new process, so each loads only what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from logging import getLogger
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...errors import ClientError, ConfigError
from ...text import described
from .messages import Answer, Evaluated, Hello, Question
from .node_store import NodeStore
from .overdue import Overdue, until_overdue

if TYPE_CHECKING:
    from .client import Node

LOG = getLogger("flwr")  # its lines reach the output of `join`
SHARE_ERRORS = "share-errors"
IN_LOG = "the client's log says more"
app = ClientApp()


def number_of(settings: Mapping[str, object]) -> int:
    """The number that a node was started with, in our word or Flower's; -1 where the server is to give it one."""
    number = settings.get("client", settings.get("partition-id", -1))
    if type(number) is not int:
        raise ConfigError(f"client must be a number. Received: {number!r}.")
    return number


@contextmanager
def errors_stay_here(settings: Mapping[str, object]) -> Iterator[None]:
    """Let the server know only the class of an error: what it says (paths, names, values) goes to this node's log.

    With the setting `share-errors` the server is told all of it.
    """
    try:
        yield
    except Overdue:
        raise
    except Exception as error:
        if settings.get(SHARE_ERRORS) is True:
            raise ClientError(described(error)) from error
        LOG.error("this error stays here; the server is told its class alone", exc_info=error)
        raise ClientError(f"{type(error).__name__} ({IN_LOG})") from None


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Say who this node is; without torch, as the first thing that a server asks."""
    from ... import __version__

    with errors_stay_here(context.node_config):
        masks = b"".join(NodeStore.of(context.node_config, context.node_id).names())
        return Message(Hello(number_of(context.node_config), masks, __version__).content(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a question."""
    question = Question.read(message.content)
    try:
        with until_overdue(message.metadata.created_at, question.seconds), errors_stay_here(context.node_config):
            answer = _answer(question, context)
    except (ClientError, Overdue) as error:
        answer = Answer(question.round, question.client, fault=str(error))
    return Message(answer.content(), reply_to=message)


def _answer(question: Question, context: Context) -> Answer:
    answer = _node(context).answer(question)
    if answer.fault and context.node_config.get(SHARE_ERRORS) is not True:
        LOG.error("%s", answer.fault)
        return replace(answer, fault=f"its half of the round failed ({IN_LOG})")
    return answer


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate a model on the samples that this client holds out."""
    question = Question.read(message.content)
    try:
        with until_overdue(message.metadata.created_at, question.seconds), errors_stay_here(context.node_config):
            answer = _node(context).evaluate(question)
    except (ClientError, Overdue) as error:
        answer = Evaluated(question.round, question.client, fault=str(error))
    return Message(answer.content(), reply_to=message)


def _node(context: Context) -> Node:
    from .client import Node
    from .task import Task

    task = Task.read(context.run_config)
    data = str(context.node_config.get("data", task.config.data))
    device = str(context.node_config.get("device", "cpu"))
    return Node(task, NodeStore.of(context.node_config, context.node_id), data, device)
