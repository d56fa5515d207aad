"""What a purge goes by: the score by its name, and the tensors that it spares, by patterns and a least density."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, cast

import numpy as np

from . import arrays
from .arrays import FloatArray
from .errors import ConfigError, MethodError
from .model import Layout, SparseModel
from .plugins import load_named
from .scores import Least, erk, lamp, magnitude, random_order, uniform
from .text import described, plain

SCORES: dict[str, Callable[..., FloatArray]] = {
    "magnitude": magnitude,
    "lamp": lamp,
    "uniform": uniform,
    "erk": erk,
    "random": random_order,
}


def score_function(name: str) -> Callable[..., Any]:
    """The function of a score of ours, or of `module:function`; it takes a model, or a model and a generator."""
    function = load_named(name, SCORES, "score")
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"score {name!r} must name a function. Received: {plain(repr(function), 80)}.")
    if not 1 <= _arguments(function) <= 2:
        raise ConfigError(
            f"score {name!r} must take a model, or a model and a random generator (rng). "
            f"Received: {name}{inspect.signature(function)}."
        )
    return function  # type: ignore[no-any-return]


def _arguments(function: Callable[..., Any]) -> int:
    """How many arguments it is called with: those without a default, the model, and `rng` by its name."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (ValueError, TypeError):
        return 1  # it does not say
    if any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters):
        return 0
    if parameters and parameters[0].kind is parameters[0].VAR_POSITIONAL:
        return 1
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = sum(one.default is one.empty for one in places)
    return max(needed, 2 if len(places) > 1 and places[1].name == "rng" else min(len(places), 1))


def draws(name: str) -> bool:
    """Whether a score takes a random generator."""
    return _arguments(score_function(name)) == 2


def scored(name: str, model: SparseModel, rng: np.random.Generator) -> FloatArray:
    """The score of each trainable entry. A user's function sees numpy arrays; what it gives is checked."""
    function = score_function(name)
    arguments = (rng,) if _arguments(function) == 2 else ()
    if name in SCORES:
        return cast(FloatArray, function(model, *arguments))
    try:
        given = function(model.on_host(), *arguments)
    except Exception as error:
        raise MethodError(f"score {name!r} raised {described(error)}.") from error
    return arrays.placed(_checked(given, name, model.layout), model.weights)


def _checked(given: Any, name: str, layout: Layout) -> np.ndarray[Any, Any]:
    """What a user's function gave, as a flat array of numbers."""
    wanted = f"score {name!r} must return one number per trainable entry, {layout.trainable:,} in a flat array"
    if hasattr(given, "detach"):
        given = arrays.to_numpy(given.detach())
    try:
        values = np.asarray(given)
    except Exception as error:
        raise MethodError(f"{wanted}. Received: {type(given).__name__}, {described(error)}.") from error
    if values.shape != (layout.trainable,) or values.dtype.kind not in "fiub":
        raise MethodError(f"{wanted}. Received: shape {values.shape} of {values.dtype}.")
    values = values.astype(np.float64 if values.dtype.itemsize > 4 else np.float32)
    if not_numbers := arrays.count_nan(values):
        raise MethodError(f"{wanted}. Received: {not_numbers:,} NaN.")
    return values


def _last(layout: Layout) -> list[str]:
    """The last weight tensor, and what belongs to the same module."""
    weights = [spec.name for spec in layout.tensors if len(spec.shape) > 1]
    return _of_modules(layout, weights[-1:])


def _norms(layout: Layout) -> list[str]:
    """The parameters of modules whose weight has one dimension."""
    return _of_modules(
        layout,
        [spec.name for spec in layout.tensors if len(spec.shape) == 1 and spec.name.rpartition(".")[2] == "weight"],
    )


def _biases(layout: Layout) -> list[str]:
    """Tensors called bias."""
    return [spec.name for spec in layout.tensors if spec.name.rpartition(".")[2].startswith("bias")]


def _of_modules(layout: Layout, names: Sequence[str]) -> list[str]:
    """All tensors of the modules that these tensors belong to."""
    modules = {name.rpartition(".")[0] for name in names}
    return [spec.name for spec in layout.tensors if spec.name.rpartition(".")[0] in modules]


WORDS: Mapping[str, Callable[[Layout], list[str]]] = {"last": _last, "norms": _norms, "biases": _biases}


def excluded(layout: Layout, patterns: Sequence[str]) -> list[str]:
    """The names of the tensors that the patterns name; a pattern without a tensor is refused, unless it is a word."""
    names, found = [spec.name for spec in layout.tensors], set[str]()
    for pattern in patterns:
        here = {name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
        here |= {*WORDS[pattern](layout)} if pattern in WORDS else set()
        if not here and pattern not in WORDS:
            shown = ", ".join(plain(name, 60) for name in names[:20]) + " …" * (len(names) > 20)
            raise ConfigError(
                f"method.exclude names no tensor of the network. Received: {pattern!r}. Its tensors: {shown}. "
                f"A pattern may name a tensor or a module, with * and ?, or be one of {', '.join(WORDS)}."
            )
        found |= here
    return [name for name in names if name in found]


@lru_cache(maxsize=64)
def least_kept(layout: Layout, exclude: tuple[str, ...], min_density: float) -> Least:
    """The fewest entries that tensors keep: all of excluded ones, a least share of the others."""
    spared = {*excluded(layout, exclude)}
    counts = {
        spec.name: spec.size if spec.name in spared else least_count(spec.size, min_density) for spec in layout.tensors
    }
    return tuple((layout.slices[name], count) for name, count in counts.items() if count)


def least_count(size: int, density: float) -> int:
    """How many of `size` entries make the density; at least one, unless it is zero."""
    return min(size, max(1, math.ceil(round(density * size, 6)))) if density else 0


def check_reachable(layout: Layout, sparsity: float, exclude: tuple[str, ...], min_density: float) -> None:
    """Refuse a sparsity that the spared entries do not allow; say which one they do."""
    size, kept = layout.trainable, sum(count for _, count in least_kept(layout, exclude, min_density))
    if int(sparsity * size) <= size - kept:
        return
    settings = [f"exclude {list(exclude)!r}"] * bool(exclude) + [f"min_density {min_density!r}"] * bool(min_density)
    reachable = math.floor((size - kept) / size * 10_000) / 10_000
    raise ConfigError(
        f"method.sparsity cannot be reached: it prunes {int(sparsity * size):,} of {size:,} entries, but "
        f"{' and '.join(settings)} keep at least {kept:,}. At most {reachable:g} can be reached. "
        f"Received: {sparsity!r}."
    )
