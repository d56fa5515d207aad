"""The type of a model's arrays, and the few operations on them, for numpy arrays and torch tensors alike.

Models are numpy arrays wherever they are sent or stored. A simulation on a GPU keeps them there as torch tensors
between rounds; only these functions tell the two apart. Torch is imported only for a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array: TypeAlias = "NDArray[Any] | torch.Tensor"
FloatArray: TypeAlias = "NDArray[np.float32] | torch.Tensor"  # weights and scores
BoolArray: TypeAlias = "NDArray[np.bool_] | torch.Tensor"  # masks
CHUNK = 32_768  # entries that stay in the cache
SAMPLE = 20_000  # scores drawn to bracket a rank; below some fifty times this, numpy's partition is as fast


def is_numpy(array: Array) -> bool:
    """Whether it is a numpy array rather than a torch tensor."""
    return isinstance(array, np.ndarray)


def _tensor(array: Array) -> torch.Tensor:
    """The array, which must be a torch tensor."""
    assert not isinstance(array, np.ndarray)
    return array


def to_numpy(array: Array) -> NDArray[Any]:
    """The array as a numpy array; without a copy if it is one, or a tensor on the CPU."""
    if isinstance(array, np.ndarray) or not array.is_cuda:
        return np.asarray(array)
    import torch

    # Into pinned memory: otherwise the driver holds up all other users of the GPU, 50 ms for vgg16.
    host = torch.empty_like(array, device="cpu", pin_memory=True).copy_(array, non_blocking=True)
    torch.cuda.current_stream(array.device).synchronize()
    return np.asarray(host.numpy())


def placed(array: Array, like: Array) -> Array:
    """The array on the device of `like`."""
    if isinstance(like, np.ndarray):
        return to_numpy(array)
    import torch

    return torch.as_tensor(array).to(like.device)


def copy(array: Array) -> Array:
    """An independent copy."""
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def joined(first: FloatArray, second: FloatArray) -> FloatArray:
    """A new array of both, one after the other, on the device of the second."""
    if isinstance(second, np.ndarray):
        return np.concatenate([to_numpy(first), second]).astype(np.float32, copy=False)
    import torch

    return torch.cat([torch.as_tensor(first).to(second), second])


def filled(like: Array, size: int, value: float, dtype: str) -> Array:
    """A new flat array of `value`, on the device of `like`."""
    if isinstance(like, np.ndarray):
        return np.full(size, value, dtype)
    import torch

    return torch.full((size,), value, dtype=getattr(torch, dtype), device=like.device)


def dtype_name(array: Array) -> str:
    """`float32`, `bool`, …"""
    return str(array.dtype).removeprefix("torch.")


def count_in_each(mask: BoolArray, places: Sequence[slice]) -> list[int]:
    """How many entries are true in each of several parts of a mask; with one wait for a GPU."""
    if isinstance(mask, np.ndarray):
        return [int(np.count_nonzero(mask[place])) for place in places]
    import torch

    held: list[int] = torch.stack([mask[place].count_nonzero() for place in places]).tolist() if places else []
    return held


def count(mask: Array) -> int:
    """How many entries are true."""
    return int(np.count_nonzero(mask)) if isinstance(mask, np.ndarray) else int(mask.count_nonzero())


def count_nan(array: Array) -> int:
    """How many entries are NaN."""
    return count(np.isnan(array) if isinstance(array, np.ndarray) else array.isnan())


def magnitude(array: FloatArray) -> FloatArray:
    """The absolute value of each entry."""
    return np.abs(array) if isinstance(array, np.ndarray) else array.abs()


def sign(array: FloatArray) -> FloatArray:
    """−1, 0 or 1 for each entry."""
    return np.sign(array) if isinstance(array, np.ndarray) else array.sign()


def square_root(array: FloatArray) -> FloatArray:
    """The square root of each entry."""
    if isinstance(array, np.ndarray):
        return np.sqrt(array)
    return array.double().sqrt().float()  # torch rounds some roots of float32 the other way


def float64(array: Array) -> Array:
    """The array in double precision."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()


def float32(array: Array) -> FloatArray:
    """The array in single precision."""
    return array.astype(np.float32, copy=False) if isinstance(array, np.ndarray) else array.float()


def add_scaled(total: Array, array: Array, weight: float) -> None:
    """total += weight · array in double precision, both on the same device."""
    if not isinstance(total, np.ndarray):
        total.add_(_tensor(array), alpha=weight)
        return
    for start in range(0, len(total), CHUNK):
        piece = slice(start, start + CHUNK)
        total[piece] += np.multiply(array[piece], weight, dtype=np.float64)


def distance(one: Array, other: Array) -> float:
    """‖one − other‖ in double precision, both on the same device; float32 overflows where training diverges."""
    if not isinstance(one, np.ndarray):
        return distance_and_parts(one, other, None)[0]
    total = 0.0
    for start in range(0, len(one), CHUNK):
        piece = slice(start, start + CHUNK)
        apart = np.subtract(one[piece], other[piece], dtype=np.float64)
        total += float(np.square(apart, out=apart).sum())  # a product of BLAS would wait for its threads
    return math.sqrt(total)


def distance_and_parts(one: Array, other: Array, index: Array | None) -> tuple[float, NDArray[np.float32]]:
    """‖one − other‖, and one − other at the entries of an index; a GPU is waited for once."""
    if isinstance(one, np.ndarray):
        if index is None:
            return distance(one, other), np.zeros(0, np.float32)
        return distance(one, other), np.subtract(one[index], other[index], dtype=np.float64).astype(np.float32)
    import torch

    apart = one.double() - _tensor(other).double()
    parts = apart[:0] if index is None else apart[_tensor(index)]
    both = to_numpy(torch.cat([apart.norm().view(1), parts]))
    return float(both[0]), both[1:].astype(np.float32)


def places(mask: BoolArray, most: int) -> Array:
    """Up to `most` entries that are true, evenly spaced among them, as an index."""
    found = np.flatnonzero(mask) if isinstance(mask, np.ndarray) else mask.nonzero().flatten()
    return found[:: max(1, -(-len(found) // most))]


def all_finite(array: Array) -> bool:
    """Whether every entry is finite."""
    return bool(np.isfinite(array).all() if isinstance(array, np.ndarray) else array.isfinite().all())


def zero_where(array: Array, mask: Array) -> None:
    """Set the entries under `mask` to zero; both are on the same device."""
    if isinstance(array, np.ndarray):
        array[mask] = 0
    else:
        array.masked_fill_(_tensor(mask), 0)  # by index, the host would wait for the number of entries


def put(array: Array, where: Array, values: Array) -> None:
    """Set the entries under a mask, or at indices, to `values`; all three are on the same device."""
    if isinstance(array, np.ndarray):
        array[where] = values
    else:
        array[_tensor(where)] = _tensor(values)


def assign(array: Array, place: slice, values: Array) -> None:
    """Set one part of the array to `values`; both are on the same device."""
    if isinstance(array, np.ndarray):
        array[place] = values
    else:
        array[place] = _tensor(values)


def highest(values: Array, count: int, among: Array, alive: int) -> Array:
    """Mask of the `count` highest values, of equals the first, among `alive` entries; there are more than `count`.

    On a GPU nothing waits: entries outside `among` sort below all others, and ties are counted on the device. Sorting
    there is also faster than selecting (`kthvalue` reads the whole array with one block of threads).
    """
    if isinstance(values, np.ndarray):
        return _highest_in_numpy(values, count, to_numpy(among), alive)
    return _highest_in_torch(values, count, _tensor(among))


def _highest_in_numpy(values: NDArray[Any], count: int, among: NDArray[np.bool_], alive: int) -> NDArray[np.bool_]:
    threshold = kth_smallest(values[among] if alive < len(values) else values, alive - count)
    mask = np.asarray((values > threshold) & among)
    ties = np.flatnonzero((values == threshold) & among)
    mask[ties[: count - int(np.count_nonzero(mask))]] = True
    return mask


def _highest_in_torch(values: torch.Tensor, count: int, among: torch.Tensor) -> torch.Tensor:
    values = values.masked_fill(~among, -float("inf"))
    threshold = values.sort().values[len(values) - count - 1]
    mask, ties = values > threshold, (values == threshold) & among
    return mask | (ties & (ties.cumsum(0) <= count - mask.sum()))


def part_numbers(sizes: Sequence[int], like: Array) -> Array:
    """For parts of these sizes, one after the other: the number of the part that each entry lies in."""
    if isinstance(like, np.ndarray):
        return np.repeat(np.arange(len(sizes)), sizes)
    import torch

    counts = torch.tensor(sizes, device=like.device)
    return torch.arange(len(sizes), device=like.device).repeat_interleave(counts, output_size=sum(sizes))


def ranked(values: FloatArray, part: Array) -> Array:
    """The indices that sort every part from its highest value down, of equals the first; values are not negative.

    One stable sort for all parts: the bits of floats from zero up are in the order of their values.
    """
    if isinstance(values, np.ndarray):
        return np.argsort((to_numpy(part) << 32) - values.view(np.int32), kind="stable")
    import torch

    return ((_tensor(part) << 32) - values.view(torch.int32)).sort(stable=True).indices


def kth_smallest(values: NDArray[Any], k: int) -> Any:
    """The value of rank k, counted from 1."""
    if values.size < 50 * SAMPLE:
        return np.partition(values, k - 1)[k - 1]
    return _bracketed(values, k)


def _bracketed(values: NDArray[Any], k: int) -> Any:
    """Floyd and Rivest's idea: a sample brackets the rank, and only values inside the bracket are partitioned."""
    sample = np.sort(values[:: values.size // SAMPLE])
    middle, margin = k / values.size * sample.size, 4 * int(sample.size**0.5)
    low = sample[max(0, int(middle) - margin)]
    high = sample[min(sample.size - 1, int(middle) + margin)]
    below = int(np.count_nonzero(values < low))
    inside = values[(values >= low) & (values <= high)]
    if not below < k <= below + inside.size:  # the sample was not typical: rare, and costs only time
        return np.partition(values, k - 1)[k - 1]
    return np.partition(inside, k - below - 1)[k - below - 1]
