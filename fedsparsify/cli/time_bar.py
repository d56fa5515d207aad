"""Progress of a measurement that takes a known time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as bars

from .screen import Screen

LINE_SECONDS = 10.0  # between lines where the output is not a terminal


@contextmanager
def time_bar(what: str, total: float) -> Iterator[Callable[[float], None]]:
    """Say on stderr what begins. The function made is told the seconds done: a bar; elsewhere, a line now and then."""
    screen = Screen(stderr=True)
    screen.print(f"{what}: {total:.3g} s…", soft_wrap=True)
    said = 0.0
    columns = bars.BarColumn(), bars.TextColumn("{task.completed:.0f} of {task.total:.0f} s")
    with bars.Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def show(done: float) -> None:
            nonlocal said
            bar.update(task, completed=min(done, total))
            if not screen.is_terminal and said + LINE_SECONDS <= done < total:
                said = done
                screen.print(f"{done:.0f} of {total:.0f} s")

        yield show
