"""`ClientApp(mods=[sparse_mod])`: a user's own training loop trains a sparse model without being changed.

In: a message of `SparseStrategy`. Out: the loop's reply, with its arrays as an encoded model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from flwr.app import Context, Message, MessageType, RecordDict
from numpy.random import SeedSequence

from ...config import RunConfig
from ...errors import ClientError, ConfigError
from ...methods import Client, ClientContext, Fit, Method, Request, Update, ask_client, run_client
from ...model import SparseModel
from ...state import under
from ...wire.codec import encode
from .messages import MODEL, RECORD, Answer, ModQuestion
from .node_store import NodeStore
from .tensors import arrays_of, weights_of

Next = Callable[[Message, Context], Message]


def sparse_mod(message: Message, context: Context, call_next: Next) -> Message:
    """Decode the model, keep its pruned weights at zero while your code trains it, and encode the answer.

    Messages of other strategies are not touched. Mods that work on arrays go after this one.

    Args:
        message: what the server sent.
        context: the node's own, from Flower.
        call_next: the next mod, or your app.

    Returns:
        The answer, with the model as encoded bytes.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> from fedsparsify.federation.flower import sparse_mod
        >>> app = ClientApp(mods=[sparse_mod])
    """
    if RECORD not in message.content.config_records:
        return call_next(message, context)
    question = ModQuestion.read(message.content)
    store = NodeStore.of(context.node_config, context.node_id)
    model, lacks = store.received(question.model, question.trainable)
    if model is None:
        return Message(Answer(question.round, -1, lacks=lacks).content(), reply_to=message)
    loop = UserLoop(message, context, call_next, question)
    if message.metadata.message_type != MessageType.TRAIN:
        return loop.ask(model)
    run, seed = str(context.run_id), [context.run_id, question.round, context.node_id]
    me = ClientContext(state=under(store.state(run, question.round), model), seed=lambda: SeedSequence(seed))
    update = loop.run(ask_client(method_of(question.method), question.round, model, me))
    if update.state is not None and update.trusted:
        store.keep_state(run, question.round, update.state, most=1)
    blob = encode(update.model, model.host_mask, "fp32", layout_known=True)
    answer = Answer(question.round, -1, update.samples, model=blob, fault=update.fault)
    rest = {key: record for key, record in loop.reply.content.items() if key not in loop.reply.content.array_records}
    return Message(RecordDict(rest | dict(answer.content())), reply_to=message)


def method_of(table: str) -> Method:
    """A method from its settings."""
    settings = json.loads(table)
    method: Method = RunConfig(rounds=settings.pop("rounds"), method=settings).method
    return method


class UserLoop:
    """A user's own training loop: it answers `Fit`, by whatever means."""

    reply: Message

    def __init__(self, message: Message, context: Context, call_next: Next, question: ModQuestion) -> None:
        self._message, self._context, self._next, self._question = message, context, call_next, question

    def ask(self, model: SparseModel) -> Message:
        """What the loop answers to a model."""
        content = self._message.content
        rest = {key: record for key, record in content.items() if key not in (RECORD, MODEL)}
        self._message.content = RecordDict(rest | {self._question.arrays: arrays_of(model, self._question.dtypes)})
        try:
            reply = self._next(self._message, self._context)
        finally:
            self._message.content = content
        if reply.has_error():  # raised: Flower's own mods outside ours look for content in every reply
            reason = f"{reply.error.reason or 'no reason'} (code {reply.error.code})"
            raise ClientError(f"the training loop, or a mod, answers with an error: {reason}")
        return reply

    def run(self, client: Client) -> Update:
        """Run the client's half of a round."""
        return run_client(client, self._fit)

    def _fit(self, request: Request) -> Update:
        if not isinstance(request, Fit):
            raise ConfigError("this method asks clients for scores, which only our own app can give: fedsparsify serve")
        if request.by_autograd:
            raise ConfigError(
                "this method asks for a training step (Fit.power, Fit.prune_inputs) that only our own app takes: "
                "fedsparsify serve"
            )
        with kept_at_zero(request):
            self.reply = self.ask(request.model)
        content, layout = self.reply.content, request.model.layout
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            raise ConfigError("a training loop must answer with one ArrayRecord and one MetricRecord, as FedAvg asks.")
        [arrays], [metrics] = content.array_records.values(), content.metric_records.values()
        if self._question.weight not in metrics:
            raise ConfigError(f"a training loop must say {self._question.weight!r} in its metrics, as FedAvg asks.")
        samples = int(float(str(metrics[self._question.weight])))
        return Update(SparseModel.masked(layout, weights_of(arrays, layout), request.model.mask), samples)


def kept_at_zero(request: Fit) -> AbstractContextManager[object]:
    """While the block lasts, gradients of pruned weights are zero in the PyTorch module that trains the model.

    A loop without PyTorch trains freely; what it makes of pruned weights is dropped when its answer is encoded.
    """
    if "torch" not in sys.modules and request.linear is None:
        return nullcontext()
    from .hooks import GradientMask

    return GradientMask(request)
