"""Which clients a round asks: late ones again in the next round, those that stay late or silent less and less often.

In: who answered, who was late, who could not be used. Out: the clients to ask, and why the others are not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

MOST_ROUNDS = 7  # that a client is not asked after it missed many deadlines
PAUSE_SECONDS = 10.0  # before a client whose answer could not be used counts as usable again; doubled every time
MOST_SECONDS = 600.0


class Attendance:
    """What is known of the clients of a run.

    A client that missed one deadline is asked again in the next round. After two in a row it is left out of one round,
    then of three, then of seven: a round waits for those it asks, up to its deadline. A late answer of a client that
    was away for several deadlines is a sign of life, and it is asked again at once; one that is always late is not.
    """

    def __init__(self) -> None:
        self._silent: Counter[int] = Counter()  # deadlines in a row that a client let pass without a word since
        self._late: Counter[int] = Counter()  # deadlines in a row after which a client's answer came
        self._next: dict[int, int] = {}  # client → the round that it is asked in again
        self._failed: Counter[int] = Counter()  # answers in a row that could not be used
        self._usable_at: dict[int, float] = {}

    def answered(self, client: int) -> None:
        """It gave a usable answer in time."""
        for known in (self._silent, self._late, self._next, self._failed, self._usable_at):
            known.pop(client, None)

    def missed(self, client: int, round: int) -> None:
        """It gave no answer to the question of a round before the deadline."""
        self._silent[client] += 1
        self._rest(client, round, self._silent[client] + self._late[client])

    def came_late(self, client: int, round: int) -> None:
        """Its answer to the question of a round came after the deadline."""
        missed = self._silent.pop(client, 0)
        if missed == 1:  # it is slow
            self._late[client] += 1
            self._rest(client, round, self._late[client])
        elif missed:  # it was away for more than one deadline, and is back
            self._late.pop(client, None)
            self._next.pop(client, None)

    def failed(self, client: int) -> None:
        """Its answer could not be used."""
        self._failed[client] += 1
        pause = PAUSE_SECONDS * 2 ** (self._failed[client] - 1)
        self._usable_at[client] = time.monotonic() + min(pause, MOST_SECONDS)

    def returned(self, client: int) -> None:
        """It was away and is connected again: what was wrong may have been mended."""
        self.answered(client)

    def usable(self, client: int) -> bool:
        """Whether a usable answer may be expected of it."""
        return time.monotonic() >= self._usable_at.get(client, 0.0)

    def asked(self, clients: Iterable[int], round: int, least: int) -> tuple[list[int], dict[int, str]]:
        """The clients to ask of those that are connected, and why the others are not; at least `least`, if they can."""
        here = list(clients)
        resting = {client: self._next[client] for client in here if self._next.get(client, 0) > round}
        if len(here) - len(resting) < least:
            return here, {}
        why = "it missed its last deadlines, and is asked again in round"
        reasons = {client: f"{why} {again}" for client, again in resting.items()}
        return [client for client in here if client not in resting], reasons

    def _rest(self, client: int, round: int, times: int) -> None:
        self._next[client] = round + 1 + min(2 ** (times - 1) - 1, MOST_ROUNDS)
