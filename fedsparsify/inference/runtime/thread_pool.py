"""The threads of an engine. Helpers stay awake for a moment after each job, so that the next finds them ready."""

from __future__ import annotations

from os import getpid
from threading import Event, Lock, Thread
from typing import NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ...model import Floats
from ...native.lines import address_of
from ..lowering.program import Arena, Program
from ..lowering.rows import ASLEEP, BEFORE, JOB, NEXT_PLACE, QUIT, WORKER, YIELD_PLACE, Orders
from .native_calls import Native, yield_address

Words = NDArray[np.int64]


class Mailbox(NamedTuple):
    """What a worker is told: see operations.MAIL_WORDS."""

    words: Words
    address: int
    bell: Event
    held: list[object]  # memory that the job's addresses point into; a helper outlives its crew

    def post(self, native: Native, state: int) -> int:
        """Put a state into it; what it held before."""
        native.post(self.address, state)
        return int(self.words[BEFORE])


class Crew:
    """The caller of a job, who leads, and helpers. One job at a time: hold `lock` while running."""

    def __init__(self, native: Native, threads: int) -> None:
        self.lock, self.process = Lock(), getpid()
        self.lost = False  # where Ctrl-C came between the helpers' orders and the leader's part, they wait for ever
        self._native, self._comings = native, 0
        self._arenas: dict[Program, Arena] = {}
        self._gate = np.zeros(NEXT_PLACE + 8, np.int64)
        self._gate[YIELD_PLACE] = yield_address()
        self._gate_address = address_of(self._gate)
        self._mails = [_mailbox(worker, self._arenas) for worker in range(threads)]
        for mail in self._mails[1:]:
            words = native, mail, self._gate
            Thread(target=_help, args=words, name="fedsparsify-helper", daemon=True).start()
        finalize(self, _dismiss, native, self._mails[1:])

    def arena(self, program: Program, members: int) -> Arena:
        """Working memory of a program: one that its workers share, or one for each member, end to end."""
        if program not in self._arenas:
            self._arenas[program] = program.arena(1 if len(program.tables) > 1 else members)
        return self._arenas[program]

    def clear(self) -> None:
        """Free the working memory, unless a job runs in it; orders that point there are not served any more."""
        if self.lock.acquire(blocking=False):
            self.lost = True
            self._arenas.clear()
            self.lock.release()

    def run(self, orders: Orders, members: int, x: Floats, y: Floats, comings: int) -> None:
        """Some orders: each for the member of its number, who come to the gate so often, or, if never, for who is free.

        Returns when every member is done.
        """
        together, self.lost = 0 if comings else members, True
        self._gate[NEXT_PLACE] = 0
        job = orders.address, orders.size, address_of(x), address_of(y), self._comings, together
        for mail in self._mails[:members]:
            mail.words[1:7], mail.held[1] = job, (orders, x, y)
        for mail in self._mails[1:members]:
            if mail.post(self._native, JOB) == ASLEEP:
                mail.bell.set()
        self._native.lead(self._mails[0].address, self._gate_address)
        for mail in self._mails[:members]:
            mail.held[1] = None
        self._comings, self.lost = self._comings + (comings or members), False


def _mailbox(worker: int, memory: object) -> Mailbox:
    words = np.zeros(16, np.int64)
    words[WORKER] = worker
    return Mailbox(words, address_of(words), Event(), [memory, None])


def _help(native: Native, mail: Mailbox, gate: Words) -> None:
    """Serve until no job comes for a while, then sleep until the bell rings."""
    while mail.words[0] != QUIT:
        native.assist(mail.address, address_of(gate))
        if mail.words[0] == ASLEEP:
            mail.bell.wait()
        mail.bell.clear()


def _dismiss(native: Native, mails: list[Mailbox]) -> None:
    for mail in mails:
        mail.post(native, QUIT)
        mail.bell.set()
