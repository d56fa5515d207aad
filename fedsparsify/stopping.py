"""Ctrl-C, SIGTERM, a closed terminal (SIGHUP): the first signal stops the work; further ones do not interrupt its end.

In: signals of the process. Out: one `KeyboardInterrupt`, at a moment when nothing is half written.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

HANG_UP = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([HANG_UP] if HANG_UP else []))
EXIT_CODE = 130  # of a command that was stopped
GRACE_SECONDS = 2.0  # within which further signals count as the same one; later ones raise again, in case one was lost
ALREADY_STOPPING = b"Already stopping: wait until what is finished is written.\n"

_raised = float("-inf")  # when the last signal became a KeyboardInterrupt


def listen() -> None:
    """Treat SIGTERM and a hang-up like Ctrl-C, and several signals like one, until the process ends."""
    global _raised
    _raised = float("-inf")
    for number in SIGNALS:
        if number != HANG_UP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _raise_once)


def ignore() -> None:
    """Ignore signals from now on: a finished command ends with its own exit code while the interpreter shuts down."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def under_way() -> bool:
    """Whether the process was asked to stop just now."""
    return time.monotonic() < _raised + GRACE_SECONDS


def _raise_once(_number: int, _frame: FrameType | None) -> None:
    global _raised
    if under_way():
        _say_already_stopping()
        return
    _raised = time.monotonic()
    raise KeyboardInterrupt


def _say_already_stopping() -> None:
    """Write that the signal was received; not by `print`, which is not reentrant."""
    with suppress(OSError):
        os.write(2, ALREADY_STOPPING)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Replace the handlers of all signals within the block, in the main thread; others never see signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler that was not installed from Python is None, and could not be put back; what is ignored stays ignored.
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: known for number, known in handlers.items() if known not in (None, signal.SIG_IGN)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def listening() -> Iterator[None]:
    """Within the block, let several Ctrl-C count as one; only where Python's own handler is installed."""
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
    """Hold signals back within the block, where something is written, and raise the first one afterwards."""
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        if under_way():
            _say_already_stopping()
        else:
            held.append(number)

    with _handled_by(hold):
        yield
    if held:
        signal.raise_signal(held[0])


@contextmanager
def ending() -> Iterator[None]:
    """Within the block, where stopped work is cleaned up, answer further signals by a line of text."""
    with _handled_by(lambda _number, _frame: _say_already_stopping()):
        yield
