"""Several runs in lock-step: each is an ordinary run in a thread of its own, and they meet where they train.

Nothing else knows. A run that asks its clients to train waits until every other run has asked too (or has ended); then
all of them are trained as one computation.

Outside that, one run works at a time. A server's work is many short operations, each of which lets go of the
interpreter's lock: with 25 threads contending for it, a round of a run took four times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..config import RunConfig
from ..data import Dataset
from ..methods import Request, Update
from ..stopping import ending
from ..training.worker import Worker
from .simulated import Machine


class Stopped(Exception):
    """Another run failed, or the user stopped the sweep; this run's checkpoint is whole."""


@dataclass
class _Ticket:
    """What one run waits for."""

    workers: Sequence[Worker]
    requests: Sequence[Request]
    answers: list[Update] = field(default_factory=list)
    done: bool = False


class SharedMachine(Machine):
    """A machine on which so many runs train as one."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self._turn = threading.Lock()
        self._meeting = threading.Condition()
        self._live = 0
        self._waiting: list[_Ticket] = []
        self._stopped = False

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """This run's answers, once every live run has asked."""
        ticket = _Ticket(workers, requests)
        self._turn.release()
        try:
            with self._meeting:
                self._waiting.append(ticket)
                self._train_if_all_are_here()
                while not ticket.done:
                    if self._stopped:
                        raise Stopped
                    self._meeting.wait()
        finally:
            self._turn.acquire()
        return ticket.answers

    def _train_if_all_are_here(self) -> None:
        if not self._waiting or len(self._waiting) < self._live or self._stopped:
            return
        tickets, self._waiting = self._waiting, []
        workers = [worker for ticket in tickets for worker in ticket.workers]
        requests = [request for ticket in tickets for request in ticket.requests]
        try:
            answers = iter(self.cohort.fit(workers, requests))
        except BaseException:
            self._stopped = True
            self._meeting.notify_all()
            raise
        for ticket in tickets:
            ticket.answers = [next(answers) for _ in ticket.workers]
            ticket.done = True
        self._meeting.notify_all()

    def play(self, runs: Sequence[Callable[[], None]]) -> None:
        """Play the runs, each in a thread; the first error stops them all and is raised here."""
        errors: list[BaseException] = []
        over = threading.Event()
        self._live = len(runs)
        _ = self.graph  # traced now: torch.fx changes every module's call while it looks, in all threads

        def one(run: Callable[[], None]) -> None:
            try:
                with self._turn:
                    run()
            except Stopped:
                pass
            except BaseException as error:
                errors.append(error)
                self.stop()
            finally:
                with self._meeting:
                    self._live -= 1
                    try:
                        self._train_if_all_are_here()  # the others may have waited for this one only
                    except BaseException as error:
                        errors.append(error)
                    if not self._live:
                        over.set()

        for run in runs:
            threading.Thread(target=one, args=(run,), daemon=True).start()
        try:
            # Not by joining the threads: Python before 3.13 takes a thread for dead when Ctrl-C interrupts its join.
            while not over.wait(0.2):  # a wait without an end would not hear Ctrl-C
                pass
        except KeyboardInterrupt:
            with ending():
                self.stop()
                over.wait()
            raise
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Let every run end at its next training."""
        self._stopped = True
        with self._meeting:
            self._meeting.notify_all()
