"""The sharing policy: whether several threads serve one sample faster than one thread, at present.

Input: how long runs took, shared and alone. Output: whether the next run uses several threads.

Half of what a layer reads was written by another core. On a virtual machine two cores may share no cache, for seconds
at a time. Then one thread is faster, so that both ways are tried now and then.
"""

from __future__ import annotations

TRIAL_INTERVAL = 400  # runs from trial to trial
TRIALS = 4  # of each way


class SharingPolicy:
    """Which way the next sample goes. Both ways give the same bits."""

    def __init__(self) -> None:
        self._runs = 0
        self._faster_shared = True
        self._best: dict[bool, float] = {}

    @property
    def shared(self) -> bool:
        """Whether the next run is shared."""
        return self._runs < TRIALS if self._runs < 2 * TRIALS else self._faster_shared

    def record(self, seconds: float) -> None:
        """Record how long a run took, the way that `shared` said."""
        if self._runs < 2 * TRIALS:
            self._best[self.shared] = min(seconds, self._best.get(self.shared, seconds))
        self._runs += 1
        if self._runs == 2 * TRIALS:
            self._faster_shared = self._best[True] <= self._best[False]
        elif self._runs == TRIAL_INTERVAL:
            self._runs, self._best = 0, {}
