"""Several inputs of one network: tokens and a mask, an image and its facts.

In: arrays by name, or in an order. Out: one object that is indexed by samples, for numpy and torch alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


class Inputs:
    """Arrays whose first axis is the samples. `inputs[rows]` picks samples of all of them, `inputs["name"]` one array.

    Named inputs are given to `forward` as keyword arguments, others as positional ones.
    """

    def __init__(self, parts: Mapping[str, Any] | Sequence[Any]) -> None:
        self.names = tuple(map(str, parts)) if isinstance(parts, Mapping) else None
        self.parts: tuple[Any, ...] = tuple(parts.values() if isinstance(parts, Mapping) else parts)

    def map(self, function: Callable[[Any], Any]) -> Inputs:
        """The same inputs with every array replaced."""
        made = tuple(map(function, self.parts))
        return Inputs(dict(zip(self.names, made, strict=True)) if self.names else made)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) and self.names:
            return self.parts[self.names.index(index)]
        return self.map(lambda part: part[index])

    def __len__(self) -> int:
        return len(self.parts[0])

    def __repr__(self) -> str:
        return f"Inputs({self.sizes})"

    @property
    def sizes(self) -> Any:
        """The shape of one sample of each input, by name or in their order."""
        shapes = tuple(tuple(part.shape[1:]) for part in self.parts)
        return dict(zip(self.names, shapes, strict=True)) if self.names else shapes

    def clone(self) -> Inputs:
        """A copy, of torch tensors."""
        return self.map(lambda part: part.clone())

    @property
    def _version(self) -> int:
        """How often the tensors were written to, as torch counts it."""
        return sum(part._version for part in self.parts)


Arrays: TypeAlias = "NDArray[Any] | Inputs"


def arrays_of(x: Arrays) -> tuple[NDArray[Any], ...]:
    """The arrays of one or several inputs."""
    return x.parts if isinstance(x, Inputs) else (x,)


def mapped(x: Arrays, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Arrays:
    """A function of every array."""
    return x.map(function) if isinstance(x, Inputs) else function(x)


def sizes_of(x: Arrays) -> Any:
    """The shape of one sample; of several inputs, by name or in their order."""
    return x.sizes if isinstance(x, Inputs) else x.shape[1:]


def sizes_from_json(value: Any) -> Any:
    """Shapes that JSON has turned into lists."""
    if isinstance(value, dict):
        return {str(name): tuple(map(int, shape)) for name, shape in value.items()}
    if value and isinstance(value[0], list):
        return tuple(tuple(map(int, shape)) for shape in value)
    return tuple(int(side) for side in value)


def has_integers(x: Arrays) -> bool:
    """Whether any input holds integers."""
    return any(np.issubdtype(part.dtype, np.integer) for part in arrays_of(x))
