"""Threads that share one image. Helpers stay awake for a moment after each, so that the next finds them ready."""

from __future__ import annotations

from threading import Event, Lock, Thread
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ..model import Floats
from .kernels import assist, execute, post
from .program import Program
from .vectors import ASLEEP, JOB, QUIT

Mail = NDArray[np.int64]  # state, address of the input, of the output, comings counted before this run


class Crew:
    """The workers of one program, with the arena that they share. One image at a time: hold `lock` while running."""

    def __init__(self, program: Program, lanes: int) -> None:
        self.lock = Lock()
        self._comings = 0
        self._program = program
        self._gate = np.zeros(16, np.int64)
        constants = program.stream, program.params, program.indices
        self._shared: Any = ((0,) * lanes, program.arena(), *constants)
        self._mails = [np.zeros(16, np.int64) for _ in program.tables[1:]]
        self._bells = [Event() for _ in self._mails]
        for table, mail, bell in zip(program.tables[1:], self._mails, self._bells, strict=True):
            words = table, self._shared, mail, self._gate, bell
            Thread(target=_help, args=words, name="fedsparsify-helper", daemon=True).start()
        finalize(self, _dismiss, self._mails, self._bells)

    def run(self, x: Floats, y: Floats) -> None:
        """One image; returns when every worker is done."""
        width, arena, *constants = self._shared
        ends = x.ctypes.data, y.ctypes.data
        for mail, bell in zip(self._mails, self._bells, strict=True):
            mail[1:4] = *ends, self._comings
            if post(mail, JOB) == ASLEEP:
                bell.set()
        execute(width, self._program.tables[0], arena, *constants, *ends, 1, self._gate, self._comings)
        self._comings += self._program.comings


def _help(table: Any, shared: Any, mail: Mail, gate: Mail, bell: Event) -> None:
    """Serve until none comes for a while, then sleep until the bell rings."""
    width, arena, *constants = shared
    while mail[0] != QUIT:
        assist(width, table, arena, *constants, mail, gate)
        if mail[0] == ASLEEP:
            bell.wait()
        bell.clear()


def _dismiss(mails: list[Mail], bells: list[Event]) -> None:
    for mail, bell in zip(mails, bells, strict=True):
        post(mail, QUIT)
        bell.set()
