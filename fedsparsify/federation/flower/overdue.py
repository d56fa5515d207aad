"""A question that is overdue is given up at the node: its answer would be dropped, and the next question waits."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import ClientError

SPARE_SECONDS = 5.0  # by which clocks may differ, and in which an answer may still be on its way


class Overdue(ClientError):
    """The deadline of a question is over."""


@contextmanager
def until_overdue(asked_at: float, seconds: float) -> Iterator[None]:
    """Let the block work on a question that the server asked at a time of its clock, for so many seconds.

    A node that was stopped or busy finds old questions first: those are not begun at all.

    Raises:
        Overdue: when the deadline is over.
    """
    left = seconds + SPARE_SECONDS - max(0.0, time.time() - asked_at)
    reason = f"it was not ready {seconds:g} s after the question, and gave it up for the next one"
    if left <= 0:
        raise Overdue(reason)
    if threading.current_thread() is not threading.main_thread():  # as in a simulation on Ray
        yield
        return

    def give_up(*_: object) -> None:
        raise Overdue(reason)

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
