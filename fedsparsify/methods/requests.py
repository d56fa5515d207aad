"""What a client's half of a method asks for (`Fit`, `Score`), and what it is answered (`Update`)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from ..arrays import BoolArray, FloatArray
from ..errors import ModelError
from ..model import Floats, SparseModel
from ..state import State, finite
from ..text import plain


@dataclass(frozen=True)
class Fit:
    """A request to a client: train `model` on your samples, under its mask. The answer is an `Update`.

    Args:
        model: where training starts; its pruned entries stay zero.
        epochs: local epochs; None: the run's setting.
        prox: μ of a proximal term towards `model`, 0 or more.
        linear: a flat array of one number per trainable entry, which is added to the gradient of every step where
            the model is not pruned: the gradient of a linear term in the client's loss. None: there is none.
        power: β of powerpropagation (Schwarz et al., 2021). Entries of weight tensors are trained as v, of which the
            network takes sign(v)·|v|^β: small weights change less, and zeros not at all. All other terms of a step
            are of v. The models of the request and of its answer hold the network's values. 1: as they are.
        prune_inputs: a layer with pruned weights computes their gradient from its largest inputs alone, the share
            that its weights keep (as in SparsyFed).

    Example:
        >>> import numpy as np
        >>> from fedsparsify import Fit, SparseModel
        >>> Fit(SparseModel.of({"w": np.ones(4)}), epochs=2)
        Fit(model=SparseModel(1 tensor, 4 of 4 values, sparsity 0.0000), epochs=2, prox=0.0)
    """

    model: SparseModel
    epochs: int | None = None
    prox: float = 0.0
    linear: FloatArray | None = field(default=None, repr=False, compare=False)  # (trainable,)
    power: float = field(default=1.0, repr=False)
    prune_inputs: bool = field(default=False, repr=False)

    trains: ClassVar[bool] = True

    @property
    def by_autograd(self) -> bool:
        """Whether it asks for a step that most back ends leave to autograd on the module itself."""
        return self.power != 1 or self.prune_inputs


@dataclass(frozen=True)
class Score:
    """A request to a client: score every trainable entry, pruned ones too. The answer is an `Update` with `scores`.

    Args:
        model: the model to score.
        by: `gradient` is g of the mean loss on one batch; `hessian-gradient` is H g on such a batch. Both leave the
            model as it is. `squares` trains as `Fit` does and sums g² over its steps; the answer's model is the
            trained one.
        per_class: the batch has up to this many samples of each class that the client holds.
        samples: if not 0, the batch has this many of the client's samples instead, whatever their classes.
        temperature: the batch's logits are divided by it.
        epochs: of `squares`; None: the run's setting.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import Score, SparseModel
        >>> Score(SparseModel.of({"w": np.ones(4)}), by="gradient").trains
        False
    """

    model: SparseModel
    by: Literal["gradient", "hessian-gradient", "squares"]
    per_class: int = 10
    temperature: float = 1.0
    epochs: int | None = None
    samples: int = 0

    prox: ClassVar[float] = 0.0
    linear: ClassVar[None] = None
    by_autograd: ClassVar[bool] = False
    power: ClassVar[float] = 1.0
    prune_inputs: ClassVar[bool] = False

    @property
    def trains(self) -> bool:
        """Whether it is answered by training, as a `Fit` is."""
        return self.by == "squares"


@dataclass(frozen=True)
class Update:
    """A client's answer to a request, and its result of a round.

    Args:
        model: the trained model, or the scored one.
        samples: how many samples it was trained on: its weight in an average.
        loss: mean training loss.
        client: the client's number; filled in by the simulator or the server, as the bytes are.
        scores: one number per trainable entry, if the request was a `Score`; a numpy array.
        download_bytes: bytes sent to the client; None: not counted.
        upload_bytes: bytes sent by the client; None: not counted.
        fault: why the server must leave the update out; empty: it can be used.
        rates: sum of the learning rates of the steps that were taken for this answer; known to the client alone.
        sent: what travels beside the model: an array of one number per trainable entry for each name in
            `Method.uploads`. Only entries that the round's mask keeps are sent.
        state: what the client keeps for its next round, and sends to nobody; None: what it has kept so far.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import SparseModel, Update
        >>> update = Update(SparseModel.of({"w": np.ones(4)}), samples=20, loss=0.5)
        >>> update
        Update(SparseModel(1 tensor, 4 of 4 values, sparsity 0.0000), samples=20, loss=0.5)
        >>> update.under(np.array([True, False, True, False])).params
        2
    """

    model: SparseModel
    samples: int
    loss: float = float("nan")
    client: int = -1
    scores: Floats | None = None  # (trainable,)
    download_bytes: int | None = None
    upload_bytes: int | None = None
    fault: str = ""
    rates: float = float("nan")
    sent: State = field(default_factory=dict)
    state: State | None = None

    def __repr__(self) -> str:
        more = f", {self.scores.size:,} scores" if self.scores is not None else ""
        more += f", client={self.client}" if self.client >= 0 else ""
        more += f", fault={plain(repr(self.fault))}" if self.fault else ""
        return f"Update({self.model!r}, samples={self.samples}, loss={self.loss:.4g}{more})"

    def under(self, mask: BoolArray) -> Update:
        """The same update with its model pruned.

        Args:
            mask: what is kept, of the entries that the model keeps; flat.

        Returns:
            A copy.
        """
        return replace(self, model=self.model.under(mask))

    def only_scores(self, scores: Floats) -> Update:
        """The same answer with scores and without weights: its model keeps only the statistics.

        Args:
            scores: one number per trainable entry.

        Returns:
            A copy.
        """
        return replace(self, model=self.model.under(np.zeros(scores.size, np.bool_)), scores=scores)

    def keep(self, **state: Any) -> Update:
        """The same update; the client keeps these arrays and numbers for its next round, beside what it keeps yet.

        Args:
            state: flat arrays of one number per trainable entry, or numbers, by name.

        Returns:
            A copy.
        """
        return replace(self, state={**(self.state or {}), **state})

    def send(self, **arrays: Any) -> Update:
        """The same update with arrays beside its model; `Method.uploads` must name them.

        Args:
            arrays: flat arrays of one number per trainable entry, by name.

        Returns:
            A copy.
        """
        return replace(self, sent={**self.sent, **arrays})

    @property
    def finite(self) -> bool:
        """Whether all its weights and scores are finite, and what is sent beside them."""
        scored = self.scores is None or bool(np.isfinite(self.scores).all())
        return self.model.finite and scored and finite(self.sent)

    @property
    def trusted(self) -> bool:
        """Whether the client may keep what the update says: neither a fault, nor a number that is not finite."""
        return not self.fault and self.finite and finite(self.state or {})

    @property
    def params(self) -> int:
        """Number of values that are sent with it."""
        beside = len(self.sent) * (self.model.layout.trainable - self.model.pruned)
        return self.model.nonzero + (0 if self.scores is None else int(np.count_nonzero(self.scores))) + beside


Request: TypeAlias = Fit | Score
Client: TypeAlias = Generator[Request, Update, Update]


def until_diverged(client: Client) -> Client:
    """A client's half that ends with the first answer that is not finite.

    That answer is the client's update, and the server leaves it out by name. The same holds for an answer for which
    the method raises a ModelError or an ArithmeticError. One client's fault does not stop the others.
    """
    request = next(client)
    while True:
        answer = yield request
        if not answer.finite:
            client.close()
            return answer
        try:
            request = client.send(answer)
        except StopIteration as done:
            update: Update = done.value
            return update
        except (ModelError, ArithmeticError) as error:
            return replace(answer, fault=f"its half of the round failed: {error}")


def run_client(client: Client, answer: Callable[[Request], Update]) -> Update:
    """Answer the requests of a client's half, one after the other; returns the client's update."""
    client = until_diverged(client)
    request = next(client)
    try:
        while True:
            request = client.send(answer(request))
    except StopIteration as done:
        update: Update = done.value
        return update
