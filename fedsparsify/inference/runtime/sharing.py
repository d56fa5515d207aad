"""Whether threads that share an image are faster than one of them alone, at present.

Half of what a layer reads was written by another core. Where a machine's cores come to have no cache in common, as a
virtual machine's may for seconds at a time, sharing can take longer than not sharing, so that both are tried now and
then.
"""

from __future__ import annotations

EVERY = 400  # runs from trial to trial
TRIES = 4  # of each way in a trial


class Pace:
    """Which way the next image should go. Both give the same bits."""

    def __init__(self) -> None:
        self._runs = 0
        self._faster = True
        self._best: dict[bool, float] = {}

    @property
    def shared(self) -> bool:
        """Whether to share it."""
        return self._runs < TRIES if self._runs < 2 * TRIES else self._faster

    def took(self, seconds: float) -> None:
        """How long it took, that way."""
        if self._runs < 2 * TRIES:
            self._best[self.shared] = min(seconds, self._best.get(self.shared, seconds))
        self._runs += 1
        if self._runs == 2 * TRIES:
            self._faster = self._best[True] <= self._best[False]
        elif self._runs == EVERY:
            self._runs, self._best = 0, {}
