"""Ctrl-C and SIGTERM: the first stops the work, and those that follow do not break up how it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 130  # of a command that was stopped
GRACE_SECONDS = 2.0  # in which further signals count as the same wish; later ones raise again, should one get lost
NOTE = b"Already stopping: wait until what is finished is written.\n"

_raised = float("-inf")  # when the last signal became a KeyboardInterrupt


def listen() -> None:
    """Make SIGTERM the same as Ctrl-C, and many of either the same as one, until the process ends."""
    global _raised
    _raised = float("-inf")
    for number in SIGNALS:
        signal.signal(number, _raise_once)


def ignore() -> None:
    """Let a command that is over end with its own exit code: the interpreter takes a moment to end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def under_way() -> bool:
    """Whether the process was asked to stop just now."""
    return time.monotonic() < _raised + GRACE_SECONDS


def _raise_once(_number: int, _frame: FrameType | None) -> None:
    global _raised
    if under_way():
        _note()
        return
    _raised = time.monotonic()
    raise KeyboardInterrupt


def _note() -> None:
    """Say that it is known; not by `print`, which must not be entered twice."""
    with suppress(OSError):
        os.write(2, NOTE)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Replace the handlers of both signals within the block, in the main thread; others never see signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler that was not installed from Python is None, and could not be put back.
    before = {number: known for number in SIGNALS if (known := signal.getsignal(number)) is not None}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def listening() -> Iterator[None]:
    """Where Ctrl-C has Python's own handler, have many count as one within the block."""
    global _raised
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    _raised = float("-inf")
    signal.signal(signal.SIGINT, _raise_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold signals back while something is being written, and let the first through afterwards."""
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        if under_way():
            _note()
        else:
            held.append(number)

    with _handled_by(hold):
        yield
    if held:
        signal.raise_signal(held[0])


@contextmanager
def ending() -> Iterator[None]:
    """The work was stopped, and what it leaves is put in order: further signals are answered by a line."""
    with _handled_by(lambda _number, _frame: _note()):
        yield
