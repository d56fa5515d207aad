"""Metrics for Prometheus, made from the status whenever they are asked for.

In: a `Status`. Out: metrics by the names in docs/federation.md. Counters follow the history: a resumed run goes on
where it stopped, and rounds that are played again count once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from ..federation.ledger import Entry
from .http_server import Reply
from .status import Status

LAST_ROUND: dict[str, tuple[str, Callable[[Entry], float | None]]] = {
    "round": ("last round that ended", lambda entry: entry.round),
    "accuracy": ("accuracy on the test samples after the last round", lambda entry: entry.accuracy),
    "loss": ("loss on the test samples after the last round", lambda entry: entry.loss),
    "train_loss": ("mean training loss of the clients in the last round", lambda entry: entry.train_loss),
    "sparsity": ("share of the trainable weights that are pruned", lambda entry: entry.sparsity),
    "nonzero_parameters": ("parameters of the model that are left", lambda entry: entry.nonzero),
    "clients": ("clients whose answers were merged in the last round", lambda entry: entry.clients),
    "clients_left_out": ("clients left out of the last round", lambda entry: len(entry.refused)),
    "round_seconds": ("seconds that the last round took", lambda entry: entry.seconds),
}


class StatusCollector(Collector):
    """The metrics of one command."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Every metric, now."""
        from .. import __version__

        status = self._status
        yield InfoMetricFamily("fedsparsify", "the version that runs", {"version": __version__, "role": status.role})
        up = GaugeMetricFamily("fedsparsify_process_up", "whether a process runs", labels=["process"])
        for name, here in status.processes().items():
            up.add_metric([name], float(here))
        yield up
        yield CounterMetricFamily(
            "fedsparsify_restarts", "starts after the first, of what is started again", status.restarts
        )
        yield GaugeMetricFamily("fedsparsify_start_time_seconds", "when the command began, in Unix time", status.began)
        yield from self._certificates()
        if status.role == "server":
            yield from self._rounds()

    def _rounds(self) -> Iterator[Metric]:
        status, entries = self._status, self._status.entries
        yield GaugeMetricFamily("fedsparsify_rounds", "rounds of the run", status.rounds)
        yield CounterMetricFamily(
            "fedsparsify_left_out", "clients left out, summed over rounds", sum(len(entry.refused) for entry in entries)
        )
        sent = CounterMetricFamily("fedsparsify_sent_bytes", "bytes of models sent, by direction", labels=["direction"])
        sent.add_metric(["to_clients"], sum(entry.download_bytes or 0 for entry in entries))
        sent.add_metric(["from_clients"], sum(entry.upload_bytes or 0 for entry in entries))
        yield sent
        if not entries:
            return
        last = entries[-1]
        for name, (help, value) in LAST_ROUND.items():
            if (number := value(last)) is not None and math.isfinite(number):
                yield GaugeMetricFamily(f"fedsparsify_{name}", help, number)
        phases = GaugeMetricFamily("fedsparsify_phase_seconds", "seconds of the last round, by phase", labels=["phase"])
        for phase, seconds in last.phases.items():
            phases.add_metric([phase], seconds)
        yield phases
        if status.last_round_at:
            text = "when the last round ended, in Unix time"
            yield GaugeMetricFamily("fedsparsify_last_round_time_seconds", text, status.last_round_at)

    def _certificates(self) -> Iterator[Metric]:
        if self._status.keys is None:
            return
        from ..federation.flower.keys import certificate_ends

        text = "when a certificate ends, in Unix time"
        ends = GaugeMetricFamily("fedsparsify_certificate_end_time_seconds", text, labels=["file"])
        for name, time in certificate_ends(self._status.keys).items():
            ends.add_metric([name], time)
        yield ends


def metrics_of(status: Status) -> Callable[[], Reply]:
    """What is answered to /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    return lambda: Reply(CONTENT_TYPE_LATEST, generate_latest(registry))
