"""Threads that share one image. Helpers stay awake for a moment after each, so that the next finds them ready."""

from __future__ import annotations

from threading import Event, Lock, Thread
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ..model import Floats
from .native import Native, yield_address
from .operations import ASLEEP, JOB, QUIT, YIELD_PLACE
from .pace import Pace
from .program import Program

Mail = NDArray[np.int64]  # state, address of the input, of the output, comings before this run, state before the last


class Crew:
    """The workers of one program, with the arena that they share. One image at a time: hold `lock` while running."""

    def __init__(self, program: Program, native: Native) -> None:
        self.lock, self.pace = Lock(), Pace()
        self._comings = 0
        self._program, self._native = program, native
        self._gate, self._arena = np.zeros(16, np.int64), program.arena()
        self._gate[YIELD_PLACE] = yield_address()
        self._shared = self._arena.address, self._gate.ctypes.data
        self._mails = [np.zeros(16, np.int64) for _ in program.addresses[1:]]
        self._bells = [Event() for _ in self._mails]
        memory = program, self._arena, self._gate
        for address, mail, bell in zip(program.addresses[1:], self._mails, self._bells, strict=True):
            words = native, (address, self._shared[0], mail.ctypes.data, self._shared[1]), mail, bell, memory
            Thread(target=_help, args=words, name="fedsparsify-helper", daemon=True).start()
        finalize(self, _dismiss, native, self._mails, self._bells)

    def run(self, x: Floats, y: Floats) -> None:
        """One image; returns when every worker is done."""
        ends = x.ctypes.data, y.ctypes.data
        for mail, bell in zip(self._mails, self._bells, strict=True):
            mail[1:4] = *ends, self._comings
            if _post(self._native, mail, JOB) == ASLEEP:
                bell.set()
        arena, gate = self._shared
        self._native.execute(self._program.addresses[0], arena, *ends, 1, gate, self._comings)
        self._comings += self._program.comings


def _help(native: Native, addresses: tuple[int, ...], mail: Mail, bell: Event, memory: object) -> None:
    """Serve until none comes for a while, then sleep until the bell rings; `memory` is what the addresses point at."""
    while mail[0] != QUIT:
        native.assist(*addresses)
        if mail[0] == ASLEEP:
            bell.wait()
        bell.clear()


def _dismiss(native: Native, mails: list[Mail], bells: list[Event]) -> None:
    for mail, bell in zip(mails, bells, strict=True):
        _post(native, mail, QUIT)
        bell.set()


def _post(native: Native, mail: Mail, state: int) -> int:
    """Put a state into a mailbox; what it held before."""
    native.post(mail.ctypes.data, state)
    return int(mail[4])
