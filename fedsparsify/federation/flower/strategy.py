"""`SparseStrategy`: a method of ours in a Flower app of yours, in the place of `FedAvg`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from logging import getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from ...config import RunConfig
from ...errors import ClientError, ConfigError, FedSparsifyError, WireError
from ...methods import Method, Update, begun, merged
from ...model import SparseModel
from ...text import plain
from ...wire.codec import decode, encode
from ..memory import Memory
from .messages import Answer, Parcel
from .server import most_bytes
from .tensors import arrays_of, layout_of, weights_of

LOG = getLogger("flwr")  # its lines reach `flwr run --stream`


class SparseStrategy(FedAvg):
    """Trains a model that is sparser from round to round. Its clients need `ClientApp(mods=[sparse_mod])`.

    `rounds` is what `start` is given as `num_rounds`, `settings` are the method's own, and those of `FedAvg` go by
    their names. The metrics of a round say its `sparsity` and how many bytes its models took.
    """

    def __init__(
        self,
        method: str | Method = "fedsparsify-global",
        sparsity: float | None = None,
        rounds: int = 3,
        settings: dict[str, Any] | None = None,
        seed: int = 1990,
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        table = method if isinstance(method, Method) else {"name": method} | (settings or {})
        config = RunConfig(method=table, sparsity=sparsity, rounds=rounds)
        self.method: Method = config.method
        if self.method.first_round != 1 or self.method.regrows:
            raise ConfigError(
                f"method {config.method_name!r} asks clients for scores, which a training loop of yours cannot give. "
                f"Our own app can: fedsparsify serve."
            )
        self._table = json.dumps(config.table()["method"] | {"rounds": rounds})
        self._seed = seed
        self._memory = Memory()
        self.model: SparseModel | None = None
        self._dtypes = "{}"
        self._bytes = [0, 0]  # down and up, of this round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes that FedAvg would ask, each with what it does not know yet."""
        if self.model is None:
            layout, self._dtypes = layout_of(arrays)
            self.model = begun(self.method, SparseModel.dense(layout, weights_of(arrays, layout)))
        self._bytes = [0, 0]
        return self._encoded(super().configure_train(server_round, ArrayRecord(), config, grid), server_round)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The same for evaluation."""
        if self.model is None:
            return super().configure_evaluate(server_round, arrays, config, grid)
        return self._encoded(super().configure_evaluate(server_round, ArrayRecord(), config, grid), server_round)

    def _encoded(self, messages: Iterable[Message], round: int) -> list[Message]:
        """A list: Flower goes through it twice."""
        model, asked = self.model, list(messages)
        assert model is not None
        blobs: dict[int | None, bytes] = {}
        for message in asked:
            node = message.metadata.dst_node_id
            version = self._memory.seen.get(node)
            if version not in blobs:
                blobs[version] = encode(model, self._memory.mask(version, model.mask.size))
            self._bytes[0] += len(blobs[version])
            parcel = Parcel(
                round,
                blobs[version],
                model.mask.size,
                self._table,
                self._dtypes,
                self.arrayrecord_key,
                self.weighted_by_key,
            )
            rest = {key: record for key, record in message.content.items() if key != self.arrayrecord_key}
            message.content = RecordDict(rest | dict(parcel.content()))
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merge what can be used; with fewer than `min_train_nodes` of them the model stays as it is."""
        model = self.model
        assert model is not None
        good, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        contents: list[RecordDict] = []
        rng = np.random.default_rng(np.random.SeedSequence([self._seed, server_round], spawn_key=(1,)))
        updates = self._updates(good, server_round, model, contents)
        first = next(updates, None)
        after = model if first is None else merged(self.method, server_round, model, chain([first], updates), rng)
        if len(contents) < max(self.min_train_nodes, 1):
            LOG.warning("round %d: %d usable answers; the model stays as it is", server_round, len(contents))
            return None, None
        self.model = after
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        down, up = self._bytes
        metrics.update({"sparsity": after.sparsity, "download-bytes": down, "upload-bytes": up})
        return arrays_of(after, self._dtypes), metrics

    def _updates(
        self, replies: Iterable[Message], round: int, model: SparseModel, contents: list[RecordDict]
    ) -> Iterator[Update]:
        """The usable answers; their other records are left in `contents`."""
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                answer = Answer.read(reply.content)
                if answer.lacks:
                    self._memory.seen.pop(node, None)
                    raise WireError("it has lost its mask, and gets the whole model in the next round")
                if answer.fault:
                    raise ClientError(answer.fault)
                if answer.round != round or len(answer.model) > most_bytes(model.layout):
                    raise WireError(f"it answers round {answer.round} with {len(answer.model):,} bytes")
                update = Update(decode(answer.model, model.mask, model.layout), answer.samples, client=node)
                if not update.model.finite or update.samples < 1:
                    raise WireError("it has no samples, or weights that are NaN or infinite")
            except FedSparsifyError as error:
                LOG.warning("round %d: node %d is left out: %s", round, node, plain(str(error)))
                continue
            self._bytes[1] += len(answer.model)
            self._memory.sent(node, round, model.mask)
            contents.append(RecordDict(dict(reply.content.metric_records)))
            yield update
