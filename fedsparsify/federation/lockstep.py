"""Several runs in lock-step: each is an ordinary run in its own thread, and all of them train as one computation.

In: the runs of a sweep that share an environment. Out: nothing; each run writes its own files. A run that asks its
clients to train waits until every other live run has asked too. Then all their clients are trained at once.

Outside of training, one run works at a time. A server's work is many short operations, each of which releases the
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
from .environment import Environment


class Stopped(Exception):
    """Another run failed, or the user stopped the sweep; this run's checkpoint is complete."""


@dataclass
class _PendingFit:
    """The training that one run waits for."""

    workers: Sequence[Worker]
    requests: Sequence[Request]
    answers: list[Update] = field(default_factory=list)
    done: bool = False


class SharedEnvironment(Environment):
    """An environment in which several runs train as one computation."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self._working = threading.Lock()  # held by the one run that works outside of training
        self._changed = threading.Condition()  # guards the fields below
        self._live = 0
        self._pending: list[_PendingFit] = []
        self._stopped = False

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """This run's answers, once every live run has asked."""
        pending = _PendingFit(workers, requests)
        self._working.release()
        try:
            with self._changed:
                self._pending.append(pending)
                self._train_if_all_wait()
                while not pending.done:
                    if self._stopped:
                        raise Stopped
                    self._changed.wait()
        finally:
            self._working.acquire()
        return pending.answers

    def _train_if_all_wait(self) -> None:
        if not self._pending or len(self._pending) < self._live or self._stopped:
            return
        fits, self._pending = self._pending, []
        workers = [worker for fit in fits for worker in fit.workers]
        requests = [request for fit in fits for request in fit.requests]
        try:
            answers = iter(self.cohort.fit(workers, requests))
        except BaseException:
            self._stopped = True
            self._changed.notify_all()
            raise
        for fit in fits:
            fit.answers = [next(answers) for _ in fit.workers]
            fit.done = True
        self._changed.notify_all()

    def run_all(self, runs: Sequence[Callable[[], None]]) -> None:
        """Run each in a thread; the first error stops them all and is raised here."""
        errors: list[BaseException] = []
        finished = threading.Event()
        self._live = len(runs)
        _ = self.graph  # traced now: while torch.fx traces, it changes every module's call in all threads

        def one(run: Callable[[], None]) -> None:
            try:
                with self._working:
                    run()
            except Stopped:
                pass
            except BaseException as error:
                errors.append(error)
                self.stop()
            finally:
                with self._changed:
                    self._live -= 1
                    try:
                        self._train_if_all_wait()  # the others may have waited for this one only
                    except BaseException as error:
                        errors.append(error)
                    if not self._live:
                        finished.set()

        for run in runs:
            threading.Thread(target=one, args=(run,), daemon=True).start()
        try:
            # Not by joining the threads: Python before 3.13 takes a thread for dead when Ctrl-C interrupts its join.
            while not finished.wait(0.2):  # without a timeout, Ctrl-C would not interrupt the wait
                pass
        except KeyboardInterrupt:
            with ending():
                self.stop()
                finished.wait()
            raise
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Let every run end at its next training."""
        self._stopped = True
        with self._changed:
            self._changed.notify_all()
