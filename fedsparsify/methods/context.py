"""What the two halves of a method are given beside the model: their state, and who they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import MethodError
from ..state import State


@dataclass(frozen=True)
class ClientContext:
    """A client in a round, as its half of a method sees it.

    Args:
        client: the client's number.
        state: what the client's last update kept (`Update.keep`); empty at first. Pruned entries are zero.
        received: what the server sent beside the model: the parts of its state that `Method.broadcasts` names.
            Before the server has them, they are absent.
        labels: the client's targets, for `class_counts`; these four are filled in by the run.
        classes: number of classes of the run.
        seed: of `rng`.
        count: number of the client's samples, for `samples`.

    Raises:
        MethodError: by `samples` and `class_counts`, if the client's samples are not known before it trains.

    Example:
        >>> import numpy as np
        >>> from fedsparsify.methods import ClientContext
        >>> me = ClientContext(labels=lambda: np.array([0, 2, 2]), classes=4)
        >>> me.samples, me.class_counts
        (3, array([1, 0, 2, 0]))
    """

    client: int = 0
    state: State = field(default_factory=dict)
    received: State = field(default_factory=dict)
    labels: Callable[[], NDArray[np.int64]] | None = field(default=None, repr=False)
    classes: int = 0
    seed: Callable[[], np.random.SeedSequence] = field(default=lambda: np.random.SeedSequence(0), repr=False)
    count: int | None = field(default=None, repr=False)

    @cached_property
    def samples(self) -> int:
        """How many samples the client holds."""
        return self.count if self.count is not None else len(self._labels("samples"))

    @cached_property
    def class_counts(self) -> NDArray[np.int64]:
        """How many samples of each class the client holds."""
        return np.bincount(self._labels("class_counts"), minlength=self.classes)

    @cached_property
    def rng(self) -> np.random.Generator:
        """The client's own randomness in this round; the same in a simulation and over a network."""
        return np.random.default_rng(self.seed())

    def _labels(self, what: str) -> NDArray[np.int64]:
        if self.labels is None:
            raise MethodError(
                f"a method asks for {what!r} of a client whose samples are not known before it trains: "
                f"a training loop of yours behind sparse_mod, or a task without classes."
            )
        return self.labels()


@dataclass(frozen=True)
class ServerContext:
    """The server in a round, as its half of a method sees it.

    Args:
        state: what the last `merge` returned beside its model; empty at first. Pruned entries are zero.
        clients: number of clients of the run, those that do not take part included.

    Example:
        >>> from fedsparsify.methods import ServerContext
        >>> ServerContext().state.get("momentum", 0.0)
        0.0
    """

    state: State = field(default_factory=dict)
    clients: int = 1
