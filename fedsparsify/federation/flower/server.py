"""The server's side of a round over Flower's grid.

In: a method's question for the clients. Out: their answers, as they come. A client that fails (it dies, hangs, answers
twice or late, or sends garbage) is left out, and the ledger says why.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import getLogger
from math import isfinite

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from ... import __version__
from ...config import RunConfig
from ...data import Dataset
from ...errors import ClientError, FedSparsifyError, WireError
from ...methods import Method, Update, cohort_of
from ...model import Layout, SparseModel
from ...networks import model_of
from ...state import State
from ...text import plain
from ...training.flat import FlatModule
from ...training.worker import Evaluation, evaluate
from ...wire.codec import Encoder, decode, mask_name
from ..client_views import ClientEvaluation, seen_by_clients
from ..environment import Environment, build_for, objective_for, participants
from ..known_masks import KnownMasks
from ..ledger import Entry
from ..wired import as_model, decode_state, encode_state
from .attendance import Attendance
from .connected_nodes import ConnectedNodes
from .messages import MOST_SAMPLES, Answer, Evaluated, Hello, Question, most_bytes
from .serve_settings import ServeSettings

LOG = getLogger("flwr")  # its lines reach `flwr run --stream`
POLL_SECONDS = 0.2
SAY_SECONDS = 30.0  # between two lines on clients that are waited for
OVERLAPPING = ("slowest client", "evaluate at clients")  # phases that others count as well
PULLED_AT_ONCE = 64 << 20  # bytes of dense models that may wait in memory: small ones are pulled many at a time


@dataclass(frozen=True)
class SentQuestion:
    """A question that a node was sent."""

    client: int
    node: int
    round: int
    whole: bool  # whether it had the whole model, mask included
    evaluates: bool = False


class Networked:
    """A federation whose clients are Flower nodes."""

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        grid: Grid,
        known_masks: KnownMasks,
        waiting: ServeSettings,
        nodes: int | None = None,
    ) -> None:
        self._config, self._dataset, self._grid, self.known_masks = config, dataset, grid, known_masks
        self._waiting, self._admitted = waiting, config.clients if nodes is None else nodes
        self.environment, self.objective = Environment(config, dataset), objective_for(config, dataset)
        self._network = FlatModule(build_for(config, dataset), self.environment.device)
        self.kept: dict[int, State] = {}  # it stays with the clients
        self._attendance = Attendance()
        self._nodes = ConnectedNodes(grid, config.clients, self._on_hello, self._attendance.returned)
        self._overdue: dict[str, SentQuestion] = {}  # until they are answered, or Flower says that they expired
        self._answered: dict[str, SentQuestion] = {}
        self._gathered = False  # whether the clients were waited for
        self._round = 0
        self._begin()

    def _begin(self) -> None:
        self.refused: dict[str, str] = {}
        self._bytes: dict[int, list[int]] = {}
        self._phases: dict[str, float] = {}
        self._unanswered = 0  # parameters sent to clients that gave no answer
        self._sent = 0  # models that were sent, the second time to a node that lacked its mask apart
        self.absent: set[int] = set()  # wanted clients that were not connected, not asked or not in time

    def initial(self) -> SparseModel:
        """The model that every run with this seed starts from."""
        return model_of(build_for(self._config, self._dataset))

    def graph_of(self, model: SparseModel) -> dict[str, object]:
        """What the file of a trained model says of its network."""
        return self.environment.graph.of_model(self._network, model)

    def evaluate(self, model: SparseModel) -> Evaluation:
        """How good a model is: on the server's test samples, for each client on the samples it holds out, or both."""
        who = self._config.evaluate
        server = evaluate(self._network, model, self.environment.test, self.objective) if who != "clients" else None
        if server and who == "server":
            return server
        with self._phase("evaluate at clients"):
            return seen_by_clients(server, self._seen_by_clients(model))

    def _seen_by_clients(self, model: SparseModel) -> dict[int, ClientEvaluation]:
        """What the connected clients measure of a model, apart from those that were late in this round."""
        round, found = self._round, {}
        nodes = self._nodes.present()
        to = [(client, node, False) for client, node in sorted(nodes.items()) if client not in self.absent]
        pending = self._send(round, model, b"", to, MessageType.EVALUATE)
        deadline = time.monotonic() + self._waiting.deadline
        while pending and time.monotonic() < deadline:
            for asked, reply in self._replies(pending, model.layout):
                try:
                    answer = _evaluated(reply, asked)
                    if answer.lacks and not asked.whole:
                        pending |= self._send(
                            round, model, b"", [(asked.client, asked.node, True)], MessageType.EVALUATE
                        )
                        continue
                    found[asked.client] = ClientEvaluation(*answer.evaluation())
                except FedSparsifyError as error:
                    self.refused[f"client {asked.client}, evaluation"] = plain(str(error))
                    continue
                self.known_masks.sent(asked.client, round + 1, model.host_mask)  # it is the next round's
        self._give_up(pending, round)
        return found

    def _give_up(self, pending: dict[str, SentQuestion], round: int) -> None:
        """Go on without the clients whose answers are not here."""
        for asked in pending.values():
            what = ", evaluation" if asked.evaluates else ""
            self.refused[f"client {asked.client}{what}"] = f"no answer within {self._waiting.deadline:g} s"
            self._attendance.missed(asked.client, round)
            self.absent.add(asked.client)
        self._overdue |= pending

    def ask(self, method: Method, round: int, model: SparseModel, sent: State | None = None) -> Iterator[Update]:
        """The clients' answers, as they come."""
        self._begin()
        self._round = round
        beside = encode_state(sent, model) if sent else b""
        self._answered.clear()
        wanted = participants(self._config, round, cohort_of(method, round))
        with self._phase("join"):
            nodes = self._gather(wanted)
        chosen, resting = self._attendance.asked((c for c in wanted if c in nodes), round, self._least(wanted))
        self.refused |= {f"client {client}": "it is not connected" for client in wanted if client not in nodes}
        self.refused |= {f"client {client}": reason for client, reason in resting.items()}
        self.absent |= {*wanted} - {*chosen}
        pending = self._send(round, model, beside, [(client, nodes[client], False) for client in chosen])
        deadline = time.monotonic() + self._waiting.deadline
        while pending and time.monotonic() < deadline:
            for asked, reply in self._replies(pending, model.layout):
                try:
                    answer = self._checked(reply, asked)
                    self._count(asked.client, up=len(answer.model) + len(answer.scores) + len(answer.beside))
                    if answer.lacks:
                        if asked.whole:
                            raise WireError("it lacks a mask that the question does not need")
                        pending |= self._send(round, model, beside, [(asked.client, asked.node, True)])
                        continue
                    if answer.fault:
                        raise ClientError(answer.fault)
                    with self._phase("decode"):
                        update = self._update(answer, method, model)
                except (FedSparsifyError, MemoryError) as error:
                    self.leave_out({f"client {asked.client}": plain(str(error), 400)})
                    continue
                self._attendance.answered(asked.client)
                self._phases["slowest client"] = max(self._phases.get("slowest client", 0.0), answer.seconds)
                self.known_masks.sent(asked.client, round, model.host_mask)
                self._unanswered -= model.nonzero
                yield update
        self._give_up(pending, round)

    def leave_out(self, refused: Mapping[str, str]) -> None:
        """Record that answers could not be used: a round that needs more clients waits for others first."""
        self.refused |= refused
        self._note_failures(refused)

    def _note_failures(self, refused: Iterable[str]) -> None:
        for found in (re.fullmatch(r"client (\d+)", name) for name in refused):
            if found:
                self._attendance.failed(int(found[1]))

    def with_network_facts(self, entry: Entry) -> Entry:
        """A round's entry with what is known only over a network: refusals, bytes per client, phases."""
        self._note_failures(entry.refused)
        if self._config.private:  # all of these tell who took part
            return entry
        known = sum(seconds for name, seconds in self._phases.items() if name not in OVERLAPPING)
        phases = self._phases | {"merge and evaluate": max(entry.seconds - known, 0.0)}
        return replace(
            entry,
            refused=entry.refused | self.refused,
            asked=self._sent,
            answered=entry.clients + len(entry.refused),
            download_params=entry.download_params + self._unanswered,
            download_bytes=sum(down for down, _ in self._bytes.values()),
            upload_bytes=sum(up for _, up in self._bytes.values()),
            client_bytes={f"client {client}": both for client, both in sorted(self._bytes.items())},
            phases={name: round(seconds, 3) for name, seconds in phases.items()},
        )

    def _least(self, wanted: list[int]) -> int:
        return min(self._config.min_clients, len(wanted))

    def _gather(self, wanted: list[int]) -> dict[int, int]:
        """Client → node. Waits for all clients in the first round, later only for as many as a round needs.

        Clients whose last answers could not be used do not count for a while; they are asked all the same.
        """
        enough = min(self._admitted, len(wanted)) if not self._gathered else self._least(wanted)
        began, shown, said = time.monotonic(), 0, 0
        while True:
            present = self._nodes.present()
            here = sum(client in present and self._attendance.usable(client) for client in wanted)
            if not self._gathered and here != shown:
                LOG.info("%d of %d clients joined", here, enough)
                shown = here
            waited = time.monotonic() - began
            if here >= enough or waited > self._waiting.wait:
                self._gathered = True
                self._nodes.settle()
                return present
            if waited // SAY_SECONDS > said:
                said = int(waited // SAY_SECONDS)
                missing = ", ".join(str(client) for client in wanted if client not in present)
                LOG.info("waiting for clients: %s; at most %.0f s more", plain(missing), self._waiting.wait - waited)
            time.sleep(POLL_SECONDS)

    def _on_hello(self, client: int, hello: Hello) -> None:
        """Forget the mask of a node that no longer has it: it is sent the whole model."""
        if hello.version != __version__:
            LOG.warning("client %d runs fedsparsify %s, the server %s", client, plain(hello.version), __version__)
        mask = self.known_masks.mask(self.known_masks.seen.get(client), self._network.layout.trainable)
        if mask is not None and mask_name(self._network.layout, mask) not in hello.names:
            del self.known_masks.seen[client]

    def _send(
        self,
        round: int,
        model: SparseModel,
        beside: bytes,
        to: Iterable[tuple[int, int, bool]],
        kind: str = MessageType.TRAIN,
    ) -> dict[str, SentQuestion]:
        """Ask the clients (client, node, whole); clients that have the same mask are sent the same blob."""
        blobs: dict[int | None, bytes] = {}
        messages, asked = [], []
        with self._phase("encode"):
            encoder = Encoder(model, self._config.wire_precision if model.finite else "fp32")
            for client, node, whole in to:
                version = None if whole else self.known_masks.seen.get(client)
                if version not in blobs:
                    known = self.known_masks.mask(version, model.layout.trainable)
                    blobs[version] = encoder.blob(known, layout_known=known is not None)
                question = Question(round, client, blobs[version], beside, self._waiting.deadline)
                ttl = self._waiting.deadline + 60
                messages.append(Message(question.content(), node, kind, ttl=ttl, group_id=str(round)))
                asked.append(SentQuestion(client, node, round, whole, kind == MessageType.EVALUATE))
                self._count(client, down=len(question.model) + len(beside))
                self._unanswered += 0 if whole else model.nonzero
                self._sent += not whole
        with self._phase("send"):
            ids = [id for message in messages for id in self._grid.push_messages([message])]
        for one in (one for id, one in zip(ids, asked, strict=True) if not id):
            self.refused[f"client {one.client}"] = "its question could not be sent"
        return {id: one for id, one in zip(ids, asked, strict=True) if id}

    def _replies(self, pending: dict[str, SentQuestion], layout: Layout) -> Iterator[tuple[SentQuestion, Message]]:
        """The replies that are here now, each once, taken out of `pending`; a pause where there are none."""
        began = time.monotonic()
        group = max(1, PULLED_AT_ONCE // (4 * layout.total + 1))
        ids = [*pending, *self._overdue]
        for first in range(0, len(ids), group):
            with self._phase("wait"):
                replies = list(self._grid.pull_messages(ids[first : first + group]))
            for reply in replies:
                id = reply.metadata.reply_to_message_id
                if asked := pending.pop(id, None):
                    self._answered[id] = asked
                    yield asked, reply
                elif asked := self._overdue.pop(id, None):
                    if not reply.has_error():
                        self._attendance.came_late(asked.client, asked.round)
                        what = ", evaluation" if asked.evaluates else ""
                        name = f"client {asked.client}, round {asked.round}{what}"
                        self.refused[name] = "its answer came after the deadline"
                elif asked := self._answered.get(id):
                    self.refused[f"client {asked.client}, again"] = "it answered twice; the first answer counts"
            replies.clear()
        with self._phase("wait"):
            if pending and (rest := began + POLL_SECONDS - time.monotonic()) > 0:
                time.sleep(rest)

    def _checked(self, reply: Message, asked: SentQuestion) -> Answer:
        """The answer, checked to be one to this question and not too large to be decoded."""
        if reply.has_error():
            raise WireError(f"Flower says: {reply.error.reason or 'no reason'} (code {reply.error.code})")
        answer = Answer.read(reply.content)
        if (answer.round, answer.client) != (asked.round, asked.client):
            raise WireError(f"it answers as client {answer.client} for round {answer.round}")
        if not (isfinite(answer.seconds) and answer.samples < MOST_SAMPLES):
            raise WireError(f"it claims {answer.samples:,} samples and {answer.seconds} seconds")
        most = most_bytes(self._network.layout)
        beside = len(answer.beside) / max(len(self._config.method.uploads), 1)
        if (size := int(max(len(answer.model), len(answer.scores), beside))) > most:
            raise WireError(f"it sent {size:,} bytes; at most {most:,} can be a model of this run")
        return answer

    def _update(self, answer: Answer, method: Method, model: SparseModel) -> Update:
        layout, scores = model.layout, None
        decoded = decode(answer.model, model.host_mask, layout)
        if not method.regrows and (back := int(np.count_nonzero(decoded.mask & ~model.mask))):
            raise WireError(f"its mask is not of this round: it keeps {back:,} entries that are pruned")
        if answer.scores:
            expected = as_model(np.zeros(layout.trainable, np.float32)).layout
            scores = decode(answer.scores, None, expected).host_weights
        sent = decode_state(answer.beside, method.uploads, model) if answer.beside else {}
        return Update(decoded, answer.samples, answer.loss, answer.client, scores, sent=sent)

    def _count(self, client: int, down: int = 0, up: int = 0) -> None:
        both = self._bytes.setdefault(client, [0, 0])
        both[0] += down
        both[1] += up

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - began


def _evaluated(reply: Message, asked: SentQuestion) -> Evaluated:
    """What a client measured, checked to be of this question."""
    if reply.has_error():
        raise WireError(f"Flower says: {reply.error.reason or 'no reason'} (code {reply.error.code})")
    answer = Evaluated.read(reply.content)
    if (answer.round, answer.client) != (asked.round, asked.client):
        raise WireError(f"it answers as client {answer.client} for round {answer.round}")
    if answer.fault:
        raise ClientError(answer.fault)
    return answer
