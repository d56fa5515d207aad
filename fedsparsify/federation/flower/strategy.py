"""`SparseStrategy`: a method of this package in a Flower app of the user's, in the place of `FedAvg`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from logging import getLogger
from types import FrameType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from ...aggregation import Aggregator, MergeSettings, PrivateRound, RoundAggregator
from ...aggregation.aggregator import Columns
from ...aggregation.entropy import poisson_cohort
from ...aggregation.privacy import Privacy
from ...config import RunConfig
from ...errors import ClientError, ConfigError, FedSparsifyError, WireError
from ...methods import Method, ServerContext, Update, begun, check_fits, merged
from ...model import SparseModel
from ...options import settings as settings_of
from ...state import State
from ...text import plain
from ...wire.codec import Encoder, decode, encode
from ..known_masks import KnownMasks
from .messages import RECORD, Answer, ModQuestion, most_bytes
from .replies import averageable, from_mod, lacks_mask, spread
from .tensors import arrays_differ, arrays_of, layout_of, weights_of

LOG = getLogger("flwr")  # its lines reach `flwr run --stream`
MANY_ROUNDS = 1000  # for which settings are checked where the rounds are not known yet


class SparseStrategy(FedAvg):
    """Trains a model that is sparser from round to round. Its clients need `ClientApp(mods=[sparse_mod])`.

    The metrics of a round say its `sparsity`, and the bytes of its models or, of a private run, its `epsilon`. Those of
    an evaluation at clients say the mean of each metric, its `-worst` client and its `-spread` over clients.

    A node's failure (an error, a damaged answer, metrics that do not fit the others') is logged and left out of the
    round. A run none of whose clients has the mod stops in its first round. Other strategies cannot be wrapped around
    this one: derive a class from it instead.

    Args:
        method: a name in `METHODS`, `module:Class`, or a `Method`.
        sparsity: the method's final sparsity; None: its default.
        rounds: what the method's schedule is made for: the `num_rounds` of `start`, which None stands for.
        settings: other settings of the method.
        seed: of everything random at the server.
        clients: number of nodes in all; differential privacy needs it.
        fedavg: arguments of Flower's `FedAvg` by name, a run's settings of merging (`merge`, `hostile`, `max_samples`,
            `norm_bound`) and of differential privacy (`epsilon`, `delta`, `dp_noise`, `dp_clip`).

    Raises:
        ConfigError: if a setting is out of range, or the method needs more than a training loop can give.

    Example:
        >>> from fedsparsify.federation.flower import SparseStrategy
        >>> SparseStrategy("fedsparsify-global", sparsity=0.95, min_train_nodes=3, merge="median").min_train_nodes
        3
    """

    def __init__(
        self,
        method: str | Method = "fedsparsify-global",
        sparsity: float | None = None,
        rounds: int | None = None,
        settings: dict[str, Any] | None = None,
        seed: int = 1990,
        clients: int | None = None,
        **fedavg: Any,
    ) -> None:
        self._merging = {name: fedavg.pop(name) for name in settings_of(MergeSettings) if name in fedavg}
        self._own_metrics = fedavg.get("train_metrics_aggr_fn") is not None
        super().__init__(**fedavg)
        self._method, self._sparsity, self._settings = method, sparsity, settings or {}
        self._rounds, self._seed, self._clients = rounds, seed, clients
        if isinstance(method, Method) and method.rounds != Method.rounds:  # it was given rounds of its own
            self._rounds = method.rounds if rounds is None else rounds
            if method.rounds != self._rounds:
                raise ConfigError(
                    f"SparseStrategy must have the rounds of its method, {method.rounds}. Received: rounds={rounds}."
                )
        self._make_method(self._rounds or MANY_ROUNDS)
        self._timeout = 3600.0  # Flower's own default
        self._begin()

    def _make_method(self, rounds: int) -> None:
        """The method for so many rounds."""
        named = isinstance(self._method, Method)
        table = self._method if named else {"name": self._method} | self._settings
        clients = self._clients or 10
        config = RunConfig(method=table, sparsity=self._sparsity, rounds=rounds, clients=clients, **self._merging)
        self.method: Method = config.method
        if self.method.first_round != 1 or self.method.regrows or not self.method.plain_fits:
            raise ConfigError(
                f"method {config.method_name!r} asks clients for scores or for another training than a loop of yours "
                f"gives. Our own app has them: fedsparsify serve."
            )
        if self.method.broadcasts or self.method.uploads:
            raise ConfigError(
                f"method {config.method_name!r} sends arrays beside the model "
                f"({', '.join({*self.method.broadcasts, *self.method.uploads})}), which a training loop of yours does "
                f"not carry. Our own app does: fedsparsify serve."
            )
        self._private = config.private
        if config.private:
            self._check_private()
        self._table = json.dumps(config.table()["method"] | {"rounds": rounds})

    def _check_private(self) -> None:
        """Refuse whatever of FedAvg's settings would publish something without noise."""
        if self._clients is None:
            raise ConfigError(
                "differential privacy needs `clients`, the number of nodes among which a round's are drawn: the "
                "denominator of every mean is fraction_train · clients."
            )
        if self._own_metrics:
            raise ConfigError(
                "differential privacy publishes no metrics of nodes, and calls no train_metrics_aggr_fn. Leave it out."
            )
        if self.fraction_evaluate > 0:
            raise ConfigError(
                f"differential privacy needs fraction_evaluate=0.0: what nodes measure is published without noise. "
                f"Received: {self.fraction_evaluate!r}. Evaluate at the server, by evaluate_fn."
            )

    def _begin(self) -> None:
        self.model: SparseModel | None = None
        self._arrays: tuple[SparseModel | None, dict[str, Array]] = None, {}  # a model, and what Flower knows it by
        self._state: State = {}  # the server's
        self._aggregator = Aggregator(MergeSettings(**self._merging))
        self.updates: dict[int, Columns] = {}  # round → what its clients sent: samples, norm, cosine to the merged one
        self._dtypes = "{}"
        self._known_masks = KnownMasks()  # the masks that nodes have confirmed
        self._grid: Grid | None = None
        self._asked: dict[int, tuple[str, RecordDict]] = {}  # node → its question, without the model
        self._bytes = [0, 0]  # down and up, of this round
        self._started = False  # whether the rounds are known from `start`
        self._mod_seen = False  # whether any node has answered by `sparse_mod`

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's own loop, from its first round: what an earlier call has left is forgotten.

        Raises:
            ConfigError: if `num_rounds` is not what the strategy was made for.
            ClientError: if no client of the first round has `sparse_mod`.
        """
        self._begin()
        self._timeout = timeout
        if self._rounds is None:
            self._make_method(num_rounds)
            self._started = True
        elif num_rounds != self._rounds:
            raise ConfigError(
                f"num_rounds must be the rounds={self._rounds} that SparseStrategy was made with: its schedule reaches "
                f"the final sparsity in that round. Received: {num_rounds}. Leave `rounds` out to follow num_rounds."
            )
        return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def summary(self) -> None:
        """Log the settings."""
        self._check_unwrapped()
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes that FedAvg would ask, each with what it does not know yet."""
        self._check_unwrapped()
        if self._rounds is None and not self._started:
            raise ConfigError("SparseStrategy needs `rounds` where its rounds are not run by its own `start`.")
        self._bytes = [0, 0]
        model = self._current(server_round, arrays)
        self._grid = grid
        if self._private:
            messages = self._poisson_messages(server_round, config, grid)
        else:
            messages = super().configure_train(server_round, ArrayRecord(), config, grid)
        return self._encoded(messages, server_round, model)

    def _poisson_messages(self, round: int, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Ask every node with the same probability; nobody can draw the cohort again."""
        if self._aggregator.privacy is None:
            merging = self._aggregator.settings
            privacy = Privacy(merging, self._clients or 1, self.fraction_train, self.method.rounds)
            self._aggregator = Aggregator(merging, privacy=privacy)
        _, nodes = sample_nodes(grid, self.min_available_nodes, 0)  # which waits for them
        asked = [nodes[place] for place in poisson_cohort(len(nodes), self.fraction_train)]
        config["server-round"] = round
        record = RecordDict({self.arrayrecord_key: ArrayRecord(), self.configrecord_key: config})
        return self._construct_messages(record, asked, MessageType.TRAIN)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The same for evaluation."""
        model = self._current(server_round, arrays)
        self._grid = grid
        return self._encoded(super().configure_evaluate(server_round, ArrayRecord(), config, grid), server_round, model)

    def _check_unwrapped(self) -> None:
        """Refuse to work for another strategy: what it does to arrays would have no effect."""
        frame: FrameType | None = sys._getframe(1)
        while frame := frame.f_back if frame else None:
            caller = frame.f_locals.get("self")
            if caller is self and frame.f_code.co_name == "start":
                return
            if isinstance(caller, Strategy) and caller is not self:
                name = type(caller).__name__
                raise ConfigError(
                    f"{name} cannot be wrapped around SparseStrategy. Models travel as encoded bytes: {name} would "
                    f"find no arrays to clip in the clients' answers, and noise would reach the returned model but "
                    f"not the one that clients are sent. For differential privacy wrap it around FedAvg; for anything "
                    f"else derive a class from SparseStrategy."
                )

    def _current(self, round: int, arrays: ArrayRecord) -> SparseModel:
        """The model to send. It is ours: arrays that somebody has changed are refused, since they would be ignored."""
        if self.model is None:
            layout, self._dtypes = layout_of(arrays)
            initial = SparseModel.dense(layout, weights_of(arrays, layout))
            check_fits(self.method, initial)
            self.model = begun(self.method, initial)
            self._arrays = self.model, dict(arrays)
        if self._arrays[0] is not self.model:  # a derived class has set it
            self._arrays = self.model, dict(arrays_of(self.model, self._dtypes))
        ours = self._arrays[1]
        if arrays.keys() != ours.keys() or any(arrays_differ(arrays[name], ours[name]) for name in ours):
            raise ConfigError(
                f"round {round}: the arrays are not those of `strategy.model`, which clients are sent. Something "
                f"changed the arrays that aggregate_train returned (a wrapper, or a derived class), to no effect. "
                f"Set `strategy.model` to the changed model as well, under its mask."
            )
        return self.model

    def _encoded(self, messages: Iterable[Message], round: int, model: SparseModel) -> list[Message]:
        """The messages with the model in them. A list: Flower goes through it twice."""
        asked, encoder = list(messages), Encoder(model)
        self._asked.clear()
        blobs: dict[int | None, bytes] = {}
        for message in asked:
            node = message.metadata.dst_node_id
            version = self._known_masks.seen.get(node)
            if version not in blobs:
                blobs[version] = encoder.blob(self._known_masks.mask(version, model.layout.trainable))
            rest = {key: record for key, record in message.content.items() if key != self.arrayrecord_key}
            self._asked[node] = message.metadata.message_type, RecordDict(rest)
            message.content = self._content(round, blobs[version], model, rest)
        return asked

    def _content(self, round: int, blob: bytes, model: SparseModel, rest: dict[str, Any]) -> RecordDict:
        self._bytes[0] += len(blob)
        names = self.arrayrecord_key, self.weighted_by_key
        question = ModQuestion(round, blob, model.layout.trainable, self._table, self._dtypes, *names)
        return RecordDict(rest | dict(question.content()))

    def _answered(self, round: int, replies: Iterable[Message], model: SparseModel) -> list[Message]:
        """The replies; a node that lacks the mask is sent the whole model, and its second reply counts."""
        found = list(replies)
        lacking = [reply.metadata.src_node_id for reply in found if lacks_mask(reply)]
        again = []
        for node in lacking:
            self._known_masks.seen.pop(node, None)
            if node in self._asked:
                kind, rest = self._asked.pop(node)
                content = self._content(round, encode(model), model, dict(rest))
                again.append(Message(content, node, kind))
        if not again or self._grid is None:
            return found
        LOG.info("round %d: the whole model is sent to nodes that lost their mask: %s", round, lacking)
        kept = [reply for reply in found if not lacks_mask(reply)]
        return [*kept, *self._grid.send_and_receive(again, timeout=self._timeout)]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merge what can be used; with fewer than `min_train_nodes` of them the model stays as it is."""
        model = self.model
        assert model is not None
        answers = self._answered(server_round, replies, model)
        self._check_mod(server_round, answers)
        good, _ = self._check_and_log_replies(answers, is_train=True, validate=False)
        contents: dict[int, RecordDict] = {}
        aggregation = self._aggregator.begin(server_round, model)
        rng = np.random.default_rng(np.random.SeedSequence([self._seed, server_round], spawn_key=(1,)))
        answered = self._updates(self._averageable(server_round, good), server_round, model, contents)
        updates = aggregation.combined(self._bounded(aggregation, answered, server_round, contents))
        first = next(updates, None)
        after, state = model, self._state
        if first is not None:
            server = ServerContext(self._state, len(list(self._grid.get_node_ids())) if self._grid else 1)
            after, state = merged(self.method, server_round, model, chain([first], updates), rng, server)
        if len(contents) < aggregation.least(max(self.min_train_nodes, 1)):
            LOG.warning("round %d: %d usable answers; the model stays as it is", server_round, len(contents))
            return None, None
        self.model, self._state = after, state
        if isinstance(aggregation, PrivateRound):  # all other metrics would be published without noise
            metrics = MetricRecord({"sparsity": after.sparsity, "epsilon": aggregation.epsilon})
        else:
            self.updates[server_round] = aggregation.columns()
            metrics = self.train_metrics_aggr_fn(list(contents.values()), self.weighted_by_key)
            down, up = self._bytes
            metrics.update({"sparsity": after.sparsity, "download-bytes": down, "upload-bytes": up})
        arrays = arrays_of(after, self._dtypes)
        self._arrays = after, dict(arrays)
        return arrays, metrics

    def _check_mod(self, round: int, answers: list[Message]) -> None:
        """Stop a run whose clients do not have the mod: they would train nothing, round after round."""
        self._mod_seen |= any(from_mod(reply) for reply in answers)
        if self._mod_seen or not answers:
            return
        found = (reply.error.reason if reply.has_error() else "an answer of another kind" for reply in answers)
        reasons = "; ".join(sorted({plain(reason) or "no reason" for reason in found})[:3])
        raise ClientError(
            f"round {round}: none of the {len(answers)} nodes that answered did so by sparse_mod ({reasons}). Clients "
            f"of SparseStrategy need ClientApp(mods=[sparse_mod]), with mods that work on arrays after it."
        )

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics that can be averaged."""
        model = self.model
        assert model is not None
        answers = self._answered(server_round, replies, model)
        good = [reply for reply in answers if not reply.has_error()]
        for reply in good:
            if not lacks_mask(reply):
                self._known_masks.sent(reply.metadata.src_node_id, 2 * server_round + 1, model.host_mask)
        failed = [reply for reply in answers if reply.has_error()]
        usable = self._averageable(server_round, good)
        metrics = super().aggregate_evaluate(server_round, failed + usable)
        if metrics is not None:
            for name, value in spread(usable, self.weighted_by_key).items():
                metrics.setdefault(name, value)
        return metrics

    def _averageable(self, round: int, replies: list[Message]) -> list[Message]:
        """Those whose metrics can be averaged; the others are named."""
        good, reasons = averageable(replies, self.weighted_by_key)
        for node, reason in reasons:
            LOG.warning("round %d: node %d is left out: %s", round, node, plain(reason))
        return good

    def _bounded(
        self,
        aggregation: RoundAggregator | PrivateRound,
        updates: Iterable[Update],
        round: int,
        contents: dict[int, RecordDict],
    ) -> Iterator[Update]:
        """The answers within their bounds; those that break one are named."""
        for update in aggregation.bounded(updates):
            if update.fault:
                LOG.warning("round %d: node %d is left out: %s", round, update.client, plain(update.fault))
                del contents[update.client]
            else:
                yield update
        for client, reason in aggregation.changed.items():
            LOG.warning("round %d: node %s: %s", round, client.removeprefix("client "), plain(reason))

    def _updates(
        self, replies: Iterable[Message], round: int, model: SparseModel, contents: dict[int, RecordDict]
    ) -> Iterator[Update]:
        """The usable answers; their other records are left in `contents`."""
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if not from_mod(reply):
                    raise WireError(f"the message has no record {RECORD!r}: its ClientApp needs mods=[sparse_mod]")
                answer = Answer.read(reply.content)
                if answer.fault:
                    raise ClientError(answer.fault)
                if answer.round != round or len(answer.model) > most_bytes(model.layout):
                    raise WireError(f"it answers round {answer.round} with {len(answer.model):,} bytes")
                update = Update(decode(answer.model, model.host_mask, model.layout), answer.samples, client=node)
                if not update.model.finite or update.samples < 1:
                    raise WireError("it has no samples, or weights that are NaN or infinite")
            except FedSparsifyError as error:
                LOG.warning("round %d: node %d is left out: %s", round, node, plain(str(error)))
                continue
            self._bytes[1] += len(answer.model)
            self._known_masks.sent(node, 2 * round, model.host_mask)
            contents[node] = RecordDict(dict(reply.content.metric_records))
            yield update
