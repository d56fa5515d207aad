"""Checks on what a user's method does; its mistakes become errors that name it.

Simulator and server call the two halves of a method only through `ask_client` and `merged`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from math import isfinite
from numbers import Integral, Real
from types import TracebackType
from typing import Any

import numpy as np

from .. import arrays
from ..errors import FedSparsifyError, MethodError
from ..model import SparseModel
from ..state import State, complaint, is_array, under
from ..text import described, plain
from .base import Method
from .context import ClientContext, ServerContext
from .requests import Client, Fit, Request, Score, Update

EXAMPLE = "A client is a generator, such as: update = yield Fit(model); return update."


class Blaming:
    """A context in which errors become MethodErrors that name the method and the function that was called."""

    def __init__(self, kind: type, what: str, stream: _Stream | None = None) -> None:
        self._name, self._half, self._stream = f"{kind.__module__}:{kind.__qualname__}.{what}", what, stream

    def __enter__(self) -> Blaming:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, FedSparsifyError | MemoryError | StopIteration):
            return
        if self._half == "client" and isinstance(error, FloatingPointError | OverflowError):
            return  # caused by this client's numbers: the client is left out by name
        if self._stream and error is self._stream.error:
            return  # raised by a client or the network, not by the method
        if isinstance(error, FrozenInstanceError):
            raise MethodError(
                f"{self._name} sets an attribute ({described(error)}). A method is frozen: what it remembers goes in "
                f"and comes out as a value. A client keeps it with update.keep(…), merge returns it beside the model."
            ) from error
        raise MethodError(f"{self._name} raised {described(error)}.") from error

    def wrong(self, expected: str, received: object) -> MethodError:
        """An error that says what was expected."""
        return MethodError(f"{self._name} must {expected}. Received: {plain(repr(received), 120)}.")


def ask_client(method: Method, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
    """The client's half of a round: the method's own generator, with every request and the update checked."""
    blame = Blaming(type(method), "client")
    me = me or ClientContext()
    with blame:
        client = method.client(round, model, me) if takes(method.client, 3) else method.client(round, model)
    if not isinstance(client, Generator):
        raise MethodError(f"{blame.wrong('be a generator', client)} {EXAMPLE}")
    request: Request | None = None
    answer: Any = None
    while True:
        try:
            with blame:
                asked = client.send(answer)
        except StopIteration as end:
            if request is None:
                raise MethodError(f"{blame.wrong('yield a request before it returns', end.value)} {EXAMPLE}") from None
            _check_update(end.value, blame)
            update: Update = end.value
            return _sending(update, method, model, blame)
        _check_request(asked, model, blame)
        request = asked
        answer = yield asked


def _check_request(request: object, model: SparseModel, blame: Blaming) -> None:
    if not isinstance(request, Fit | Score):
        raise blame.wrong("yield Fit and Score requests", request)
    if not isinstance(request.model, SparseModel) or request.model.layout != model.layout:
        raise blame.wrong("ask with a model of the round's layout", request.model)
    if request.epochs is not None and not (isinstance(request.epochs, Integral) and request.epochs >= 1):
        raise blame.wrong("ask for a whole number of epochs, at least 1, or None", request.epochs)
    if not (isinstance(request.prox, Real) and isfinite(request.prox) and request.prox >= 0):
        raise blame.wrong("ask with a prox that is a number, 0 or more", request.prox)
    if request.linear is not None and (problem := _wrong_array(request.linear, model.layout.trainable)):
        raise blame.wrong(
            f"ask with a linear that is None or {model.layout.trainable:,} finite numbers, one per trainable entry",
            problem,
        )
    if isinstance(request, Fit) and not (isinstance(request.power, Real) and 1 <= request.power < float("inf")):
        raise blame.wrong("ask with a power that is a number, 1 or more", request.power)
    if isinstance(request, Score):
        if request.by not in ("gradient", "hessian-gradient", "squares"):
            raise blame.wrong("score by gradient, hessian-gradient or squares", request.by)
        if not (isinstance(request.per_class, Integral) and request.per_class >= 1):
            raise blame.wrong("score with a whole number of samples per class, at least 1", request.per_class)
        if not (isinstance(request.samples, Integral) and request.samples >= 0):
            raise blame.wrong("score with a whole number of samples, 0 or more", request.samples)
        if not (isinstance(request.temperature, Real) and request.temperature):
            raise blame.wrong("score with a temperature that is a number other than 0", request.temperature)


def _wrong_array(values: Any, size: int) -> str | None:
    """What is wrong with a flat array of so many numbers; None: nothing."""
    if not (hasattr(values, "dtype") and hasattr(values, "shape")):
        return type(values).__name__
    if tuple(values.shape) != (size,) or not arrays.dtype_name(values).startswith("float"):
        return f"an array of shape {tuple(values.shape)} and type {arrays.dtype_name(values)}"
    return None if arrays.all_finite(values) else "an array with infinite or missing numbers"


def _check_update(update: object, blame: Blaming) -> None:
    if not isinstance(update, Update):
        raise MethodError(f"{blame.wrong('return an Update', update)} {EXAMPLE}")
    if not isinstance(update.model, SparseModel):
        raise blame.wrong("return an Update with a SparseModel", update.model)
    if not (isinstance(update.samples, Real) and isinstance(update.loss, Real)):
        raise blame.wrong("return an Update whose samples and loss are numbers", (update.samples, update.loss))
    if not (update.scores is None or isinstance(update.scores, np.ndarray)):
        raise blame.wrong("return an Update whose scores are a numpy array or None", update.scores)


def _sending(update: Update, method: Method, model: SparseModel, blame: Blaming) -> Update:
    """The update with what it sends and keeps under the round's mask, beside the model."""
    if update.sent and set(update.sent) != set(method.uploads):
        raise blame.wrong(f"send {sorted(method.uploads)} beside its model, as `uploads` says", sorted(update.sent))
    for name, array in update.sent.items():
        if not is_array(array) or tuple(array.shape) != (model.layout.trainable,):
            raise blame.wrong(f"send {name!r} as {model.layout.trainable:,} flat numbers", array)
    if update.state is not None and (wrong := complaint(update.state)):
        raise blame.wrong("keep named flat arrays and numbers", f"{wrong}")
    if not update.sent and update.state is None:
        return update
    ordered = {name: update.sent[name] for name in method.uploads if update.sent}
    return replace(
        update, sent=under(ordered, model), state=None if update.state is None else under(update.state, model)
    )


def takes(function: Callable[..., object], count: int) -> bool:
    """Whether a method's half takes so many arguments: the last one, its context, may be left out."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


class _Stream:
    """The stream of updates that a merge reads; knows whether all were read, and the error that it raised."""

    def __init__(self, updates: Iterable[Update]) -> None:
        self._updates = iter(updates)
        self.error: Exception | None = None
        self.ended = False

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        try:
            return next(self._updates)
        except StopIteration:
            self.ended = True
            raise
        except Exception as error:
            self.error = error
            raise


def merged(
    method: Method,
    round: int,
    model: SparseModel,
    updates: Iterable[Update],
    rng: np.random.Generator,
    server: ServerContext | None = None,
) -> tuple[SparseModel, State]:
    """The server's half of a round: the model that the method makes of all updates, and its state, checked."""
    server = server or ServerContext()
    stream = _Stream(updates)
    blame = Blaming(type(method), "merge", stream)
    with blame:
        arguments = (round, model, stream, rng, server)
        made = method.merge(*arguments if takes(method.merge, 5) else arguments[:4])
    state: State = {}
    if isinstance(made, tuple) and len(made) == 2:
        made, state = made
        if wrong := complaint(state):
            raise blame.wrong("return its state as named flat arrays and numbers", wrong)
    if not isinstance(made, SparseModel) or made.layout != model.layout:
        raise blame.wrong("return a SparseModel of the round's layout", made)
    if not stream.ended:
        raise blame.wrong("read all updates before it returns", made)
    state = under(state, made)
    for name in method.broadcasts:
        array: Any = state.get(name)
        if name in state and (not is_array(array) or tuple(array.shape) != (model.layout.trainable,)):
            raise blame.wrong(
                f"return the state {name!r}, which it broadcasts, as one number per trainable entry", array
            )
    return made, state


def check_fits(method: Method, model: SparseModel) -> None:
    """Refuse a network that the method cannot work with; before a run opens its folder."""
    with Blaming(type(method), "check"):
        method.check(model)


def begun(method: Method, model: SparseModel) -> SparseModel:
    """The model that the first round starts from."""
    blame = Blaming(type(method), "begin")
    with blame:
        made = method.begin(model)
    if not isinstance(made, SparseModel) or made.layout != model.layout:
        raise blame.wrong("return a SparseModel of the run's layout", made)
    return made


def cohort_of(method: Method, round: int) -> float | None:
    """How many clients the method wants in a round, or None."""
    blame = Blaming(type(method), "cohort")
    with blame:
        count = method.cohort(round)
    if count is not None and not (isinstance(count, Real) and count >= 1):
        raise blame.wrong("return a number of clients, at least 1, or None", count)
    return count


def target_of(method: Method, round: int) -> float:
    """The method's target sparsity for a round."""
    blame = Blaming(type(method), "schedule")
    with blame:
        target = method.schedule(round)
    if not (isinstance(target, Real) and 0 <= target <= 1):
        raise blame.wrong("give a sparsity in [0, 1] for a round", target)
    return float(target)


def check_unchanging(method: Method) -> None:
    """Refuse a method that could remember something by itself: it would be lost when a run is resumed."""
    kind = type(method)
    held = {field.name: getattr(method, field.name, None) for field in fields(method)}
    for base in kind.__mro__:
        if issubclass(base, Method) and base is not Method:
            held |= {
                name: value for name, value in vars(base).items() if not name.startswith("__") and name not in held
            }
    for name, value in held.items():
        if _can_change(value):
            raise MethodError(
                f"{kind.__module__}:{kind.__qualname__}.{name} can change: it is a {type(value).__name__}. A method "
                f"keeps nothing itself, since a resumed run would not have it. Use a tuple for a constant; a client "
                f"keeps what changes with update.keep(…), merge returns it beside the model."
            )


def _can_change(value: object) -> bool:
    if isinstance(value, tuple | frozenset):
        return any(map(_can_change, value))
    if isinstance(value, list | dict | set | bytearray | Generator) or hasattr(value, "__array__"):
        return True
    return is_dataclass(value) and not isinstance(value, type) and not type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
