"""A data set: samples as the network takes them, and targets as the loss takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..model import Floats
from ..preprocessing import Preprocessing
from ..tasks import Targets
from .inputs import Arrays, Inputs, arrays_of, mapped, sizes_of

PARTS = ("x_train", "y_train", "x_test", "y_test")
MOST_CLASSES = 2**20
AS_IT_IS = Preprocessing()


@dataclass(frozen=True)
class Dataset:
    """Samples as the network takes them, `(n, *shape)`, and their targets, for training and for testing.

    Args:
        name: for messages.
        x_train: samples. Floats become float32, integers int64 (tokens). A dictionary or a tuple of arrays is several
            inputs, which `forward` is given by name or in this order.
        y_train: targets. Integers from 0 on are classes, (n,), or (n, …) for a class per pixel. Other numbers are
            values. True and false, (n, labels), are labels.
        x_test: samples to evaluate on; none of them (n = 0) where clients evaluate.
        y_test: their targets.
        preprocessing: what was done to raw samples; the model's file states it.
        labels: names of the classes.
        targets: `classes`, `labels` or `values`, where the type of y_train does not say it.
        clients: who holds each training sample, (n,), for `split = "column"`.

    Raises:
        DataError: if shapes do not fit together, or values are not numbers, classes from 0 on, or labels.

    Example:
        >>> import numpy as np
        >>> from fedsparsify.data import Dataset
        >>> x, y = np.random.default_rng(0).random((20, 3)), np.arange(20) / 20
        >>> Dataset("ramp", x[:15], y[:15], x[15:], y[15:])
        Dataset('ramp', 15 + 5 samples of shape (3,), values 0 … 0.7)
    """

    name: str
    x_train: Any
    y_train: NDArray[Any]
    x_test: Any
    y_test: NDArray[Any]
    preprocessing: Preprocessing = AS_IT_IS
    labels: tuple[str, ...] = ()
    targets: Targets = None  # type: ignore[assignment]  # set from y_train where it is not given
    clients: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        if self.targets is None:
            both = [as_array(getattr(self, part), f"{self.name}: {part}") for part in ("y_train", "y_test")]
            object.__setattr__(self, "targets", targets_by_type(*both))
        for part in PARTS:
            given, what = getattr(self, part), f"{self.name}: {part}"
            made = (
                target_array(as_array(given, what), self.targets, what)
                if part[0] == "y"
                else mapped(raw_inputs(given, what), samples)
            )
            object.__setattr__(self, part, made)
        for x, y, part in ((self.x_train, self.y_train, "train"), (self.x_test, self.y_test, "test")):
            self._check_half(x, y, part)
        if sizes_of(self.x_train) != sizes_of(self.x_test):
            raise DataError(
                f"{self.name}: train and test samples differ in shape: "
                f"{sizes_of(self.x_train)} and {sizes_of(self.x_test)}."
            )
        if [x.dtype for x in arrays_of(self.x_train)] != [x.dtype for x in arrays_of(self.x_test)]:
            for part in ("x_train", "x_test"):  # integers in one of them alone
                object.__setattr__(self, part, mapped(getattr(self, part), floats))
        if self.y_train.shape[1:] != self.y_test.shape[1:]:
            raise DataError(
                f"{self.name}: train and test targets differ in shape: "
                f"{self.y_train.shape[1:]} and {self.y_test.shape[1:]}."
            )
        if self.clients is not None:
            clients = np.asarray(self.clients)
            if clients.shape != (len(self.y_train),):
                raise DataError(
                    f"{self.name}: client must name who holds each training sample, ({len(self.y_train):,},). "
                    f"Received: {clients.shape}."
                )
            object.__setattr__(self, "clients", clients)

    def _check_half(self, x: Arrays, y: NDArray[Any], part: str) -> None:
        if part == "test" and not len(y) and not any(len(array) for array in arrays_of(x)):
            return  # clients evaluate on samples of their own
        for array in arrays_of(x):
            if array.ndim < (1 if isinstance(x, Inputs) else 2) or y.shape[:1] != (len(array),) or not len(array):
                raise DataError(
                    f"{self.name}: x_{part} must be (n, …) and y_{part} (n,) or (n, …), n > 0. "
                    f"Received: {array.shape} and {y.shape}."
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(f"{self.name}: x_{part} holds values that are not numbers.")
        if not y.size:
            raise DataError(f"{self.name}: y_{part} is empty. Received: {y.shape}.")
        if self.targets == "classes":
            self._check_classes(y, part)
        elif not np.isfinite(y).all():
            raise DataError(f"{self.name}: y_{part} holds values that are not numbers.")
        elif self.targets == "labels" and (y.min() < 0 or y.max() > 1):
            raise DataError(
                f"{self.name}: y_{part} must hold labels, 0 or 1 for each. Received: {y.min():g} … {y.max():g}."
            )

    def _check_classes(self, y: NDArray[Any], part: str) -> None:
        if self.outputs > MOST_CLASSES:
            raise DataError(
                f"{self.name}: labels must be 0 … classes − 1, of at most {MOST_CLASSES:,} classes. "
                f"Received: {self.outputs - 1:,} in y_train. For regression, name another loss, such as mse."
            )
        if y.min() < 0 or y.max() >= self.outputs:
            hint = " Labels of −1 and 1 become classes by (y + 1) // 2." if y.min() == -1 else ""
            raise DataError(
                f"{self.name}: y_{part} must lie in 0 … {self.outputs - 1}, the classes of y_train. "
                f"Received: {y.min()} … {y.max()}.{hint}"
            )

    def __repr__(self) -> str:
        counts = f"{len(self.x_train):,} + {len(self.x_test):,} samples of shape {self.shape}"
        return f"Dataset({self.name!r}, {counts}, {self.about_targets})"

    @property
    def shape(self) -> Any:
        """Shape of one sample; of several inputs, by name or in their order."""
        return sizes_of(self.x_train)

    @property
    def examples(self) -> Any:
        """The test samples, or the training samples where there are none."""
        return self.x_test if len(self.y_test) else self.x_train

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for a sample: one per class (and pixel), label or value."""
        return int(self.y_train.max()) + 1 if self.targets == "classes" else prod(self.y_train.shape[1:])

    @property
    def classes(self) -> int:
        """How many classes the training targets name; 0 where they are not classes."""
        return self.outputs if self.targets == "classes" else 0

    @property
    def about_targets(self) -> str:
        """The targets in a few words."""
        y = self.y_train
        each = f" for each of {' × '.join(map(str, y.shape[1:]))}" if y.ndim > 1 else ""
        if self.targets == "classes":
            return f"{self.classes} classes{each}"
        if self.targets == "labels":
            return f"{self.outputs} label{'s' * (self.outputs > 1)}, {y.mean():.1%} of them set"
        return f"values {y.min():.4g} … {y.max():.4g}{each}"

    def with_targets(self, targets: Targets | None) -> Dataset:
        """The data set with its targets as a loss takes them.

        Args:
            targets: `classes`, `labels` or `values`; None: as they are.

        Returns:
            The data set itself, or a copy.
        """
        return self if targets in (None, self.targets) else replace(self, targets=targets)

    def with_floats(self) -> Dataset:
        """The data set with float32 samples in place of integers.

        Returns:
            A copy.
        """
        return replace(self, x_train=mapped(self.x_train, floats), x_test=mapped(self.x_test, floats))


def targets_by_type(train: NDArray[Any], test: NDArray[Any]) -> Targets:
    """What targets are if nobody says it: integers are classes, floats values, a table of truth values labels.

    Integers that cannot be classes (negative, or larger in `test` than in `train`) are values; a loss of classes names
    what is wrong with them.
    """
    if train.dtype.kind == "b" and train.ndim > 1:
        return "labels"
    if train.dtype.kind == "f" or not train.size or int(train.min()) < 0 or int(train.max()) >= MOST_CLASSES:
        return "values"
    return "values" if test.size and (int(test.min()) < 0 or test.max() > train.max()) else "classes"


def target_array(y: NDArray[Any], targets: Targets, what: str) -> NDArray[Any]:
    """Targets in the type that losses take: int64 for classes, float32 for the others."""
    if targets != "classes":
        return floats(y)
    if y.dtype.kind == "f":
        if y.size and (not np.isfinite(y).all() or (y != np.rint(y)).any()):
            odd = y[~np.isfinite(y) | (y != np.rint(y))].flat[0]
            raise DataError(
                f"{what} must hold integer classes, 0 … K − 1. Received: {odd:g}. "
                f"For regression, name another loss, such as --loss mse."
            )
        if y.size and np.abs(y).max() >= 2**63:
            raise DataError(f"{what} must hold classes from 0 on. Received: {np.abs(y).max():g}.")
    elif y.size and int(y.max()) >= 2**63:
        raise DataError(f"{what} must hold classes from 0 on. Received: {y.max()}.")
    whole = np.ascontiguousarray(y, np.int64) if y.ndim else y.astype(np.int64)
    return whole[:, 0] if whole.ndim == 2 and whole.shape[1] == 1 else whole


def check_first_class(dataset: Dataset) -> None:
    """Refuse classes that are counted from 1."""
    if dataset.targets != "classes" or dataset.y_train.min() != 1:
        return
    found = np.unique(np.concatenate([dataset.y_train.ravel(), dataset.y_test.ravel()]))
    if found.size > 1 and np.array_equal(found, np.arange(1, found.size + 1)):
        raise DataError(
            f"{dataset.name}: y_train counts its classes from 1: it holds 1 … {found[-1]}, and no 0. Classes are "
            f"0 … {found[-1] - 1} here: subtract 1 from y_train and y_test."
        )


def channels_last(shape: Any) -> str:
    """A hint, if samples of this shape look like images with their channels last; otherwise nothing."""
    if not isinstance(shape, tuple) or len(shape) != 3 or not all(isinstance(side, int) for side in shape):
        return ""
    if shape[2] not in (1, 3, 4) or shape[0] in (1, 3, 4) or min(shape[:2]) < 8:
        return ""
    return (
        f"Samples of shape {shape} look like images with their channels last (height, width, channels). Networks of "
        f"PyTorch take (channels, height, width): x.transpose(0, 3, 1, 2)."
    )


def raw_inputs(value: object, what: str) -> Arrays:
    """Samples in their own type; a dictionary or a tuple of arrays is several inputs."""
    if isinstance(value, Inputs):
        return value
    if isinstance(value, Mapping):
        if not value:
            raise DataError(f"{what} must hold an array for each input. Received: an empty dictionary.")
        return Inputs({name: as_array(part, f"{what}[{name!r}]") for name, part in value.items()})
    if isinstance(value, tuple) and value and all(getattr(part, "ndim", 0) for part in value):
        return Inputs([as_array(part, f"{what}[{place}]") for place, part in enumerate(value)])
    return as_array(value, what)


def samples(array: NDArray[Any]) -> NDArray[Any]:
    """One input: integers stay integers, except bytes and truth values."""
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        return np.ascontiguousarray(array, np.int64) if array.ndim else array.astype(np.int64)
    return floats(array)


def floats(array: NDArray[Any]) -> Floats:
    """The array as float32."""
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused
        return np.ascontiguousarray(array, np.float32) if array.ndim else array.astype(np.float32)


def as_array(value: object, what: str) -> NDArray[Any]:
    """An array of real numbers, or an error that says what was received."""
    try:
        array = np.asarray(value)
    except Exception as error:  # numpy and a value's own conversion may raise anything
        raise DataError(f"{what} must be an array of numbers. Received: {type(value).__name__}; {error}") from error
    if array.dtype.kind in "US":
        raise DataError(
            f"{what} must hold numbers. Received: text ({array.dtype}). Classes by name become numbers by "
            f"names, y = numpy.unique(y, return_inverse=True)."
        )
    if array.dtype.kind not in "fiub":
        raise DataError(f"{what} must hold numbers. Received: {array.dtype}.")
    return array
