"""The sharing policy: whether several threads serve one sample faster than one thread, at present.

Input: how long runs took, shared and alone. Output: whether the next run uses several threads.

Half of what a layer reads was written by another core. On a virtual machine two cores may share no cache, for seconds
at a time. Then one thread is faster, so that both ways are tried now and then: soon after a trial that changed the way,
more rarely the longer it stays the same, and at once where runs take longer than the other way did.
"""

from __future__ import annotations

TRIALS = 4  # of each way, in turns, so that what disturbs the machine for a while disturbs both
FIRST_INTERVAL, TRIAL_INTERVAL = 25, 400  # runs from trial to trial: at first, and at the most
DISAPPOINTMENTS = 6  # runs one after the other that take longer than the other way did, before both are tried again


class SharingPolicy:
    """Which way the next sample goes. Both ways give the same bits."""

    def __init__(self) -> None:
        self._runs = 0  # since the last trial began
        self._interval = FIRST_INTERVAL
        self._faster_shared = True
        self._slower = 0  # runs one after the other
        self._best: dict[bool, float] = {}

    @property
    def shared(self) -> bool:
        """Whether the next run is shared."""
        return self._runs % 2 == 0 if self._runs < 2 * TRIALS else self._faster_shared

    def record(self, seconds: float) -> None:
        """Record how long a run took, the way that `shared` said."""
        way = self.shared
        self._runs += 1
        if self._runs <= 2 * TRIALS:
            self._best[way] = min(seconds, self._best.get(way, seconds))
            if self._runs == 2 * TRIALS:
                self._decide()
            return
        self._slower = self._slower + 1 if seconds > self._best[not way] else 0
        if self._slower == DISAPPOINTMENTS:
            self._interval = FIRST_INTERVAL
        if self._slower == DISAPPOINTMENTS or self._runs >= self._interval:
            self._runs, self._slower, self._best = 0, 0, {}

    def _decide(self) -> None:
        """Take the faster way; the longer it stays the same, the longer until the next trial."""
        shared = self._best[True] <= self._best[False]
        same = shared == self._faster_shared
        self._interval = min(2 * self._interval, TRIAL_INTERVAL) if same else FIRST_INTERVAL
        self._faster_shared = shared
