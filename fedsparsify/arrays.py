"""The few operations a model needs, for numpy arrays and torch tensors alike.

Models live in numpy wherever they are sent or stored. A simulation on a GPU keeps them there as torch tensors between
rounds; only these functions tell the two apart. Torch is imported only where a tensor is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 32_768
SAMPLE = 20_000  # scores drawn to bracket a rank; below some fifty times this, numpy's partition is as fast


def is_numpy(array: Any) -> bool:
    """Whether it is a numpy array rather than a torch tensor."""
    return isinstance(array, np.ndarray)


def to_numpy(array: Any) -> NDArray[Any]:
    """The array in the host's memory."""
    if is_numpy(array) or not array.is_cuda:
        return np.asarray(array)
    import torch

    # Into pinned memory: without, the driver blocks other threads that use the GPU, for 50 ms with vgg16.
    host = torch.empty_like(array, device="cpu", pin_memory=True).copy_(array, non_blocking=True)
    torch.cuda.current_stream(array.device).synchronize()
    return np.asarray(host.numpy())


def placed(array: Any, like: Any) -> Any:
    """The array brought to where `like` lives."""
    if is_numpy(like):
        return to_numpy(array)
    import torch

    return torch.as_tensor(array).to(like.device)


def copy(array: Any) -> Any:
    """An independent copy."""
    return array.copy() if is_numpy(array) else array.clone()


def filled(like: Any, size: int, value: Any, dtype: str) -> Any:
    """A new flat array of `value`, where `like` lives."""
    if is_numpy(like):
        return np.full(size, value, dtype)
    import torch

    return torch.full((size,), value, dtype=getattr(torch, dtype), device=like.device)


def dtype_name(array: Any) -> str:
    """`float32`, `bool`, …"""
    return str(array.dtype).removeprefix("torch.")


def any_in_each(mask: Any, places: Sequence[slice]) -> list[bool]:
    """Whether there is a True in each of several parts of a mask; a GPU is asked once."""
    if is_numpy(mask):
        return [bool(mask[place].any()) for place in places]
    import torch

    held: list[bool] = torch.stack([mask[place].any() for place in places]).tolist()
    return held


def count(mask: Any) -> int:
    """How many entries are true."""
    return int(np.count_nonzero(mask)) if is_numpy(mask) else int(mask.count_nonzero())


def float64(array: Any) -> Any:
    """The array in double precision."""
    return array.astype(np.float64) if is_numpy(array) else array.double()


def float32(array: Any) -> Any:
    """The array in single precision."""
    return array.astype(np.float32) if is_numpy(array) else array.float()


def add_scaled(total: Any, array: Any, weight: float) -> None:
    """total += weight · array in double precision; in chunks that stay in the cache."""
    if not is_numpy(total):
        total.add_(array, alpha=weight)
        return
    for start in range(0, len(total), CHUNK):
        chunk = slice(start, start + CHUNK)
        total[chunk] += np.multiply(array[chunk], weight, dtype=np.float64)


def all_finite(array: Any) -> bool:
    """Whether every entry is a number."""
    return bool(np.isfinite(array).all() if is_numpy(array) else array.isfinite().all())


def zero_where(array: Any, mask: Any) -> None:
    """Set the entries under `mask` to zero."""
    if is_numpy(array):
        array[mask] = 0
    else:
        array.masked_fill_(mask, 0)  # with an index, the host would wait for the GPU to count them


def highest(values: Any, count: int, among: Any, alive: int) -> Any:
    """Mask of the `count` highest values among the `alive` entries of `among`, the first of equal ones; count < alive.

    On a GPU the host does not wait: entries outside `among` sort below all others, and ties are counted on the GPU.
    Sorting there is also faster than selecting (`kthvalue` reads the whole array with one block of threads).
    """
    if is_numpy(values):
        threshold = kth_smallest(values[among] if alive < len(values) else values, alive - count)
        mask = (values > threshold) & among
        ties = np.flatnonzero((values == threshold) & among)
        mask[ties[: count - int(np.count_nonzero(mask))]] = True
        return mask
    values = values.masked_fill(~among, -float("inf"))
    threshold = values.sort().values[len(values) - count - 1]
    mask, ties = values > threshold, (values == threshold) & among
    return mask | (ties & (ties.cumsum(0) <= count - mask.sum()))


def kth_smallest(values: NDArray[Any], k: int) -> Any:
    """The value of rank k, counted from 1."""
    if values.size < 50 * SAMPLE:
        return np.partition(values, k - 1)[k - 1]
    return _bracketed(values, k)


def _bracketed(values: NDArray[Any], k: int) -> Any:
    """After Floyd and Rivest: a sample brackets the rank, and only values inside the bracket are partitioned."""
    sample = np.sort(values[:: values.size // SAMPLE])
    middle, margin = k / values.size * sample.size, 4 * int(sample.size**0.5)
    low = sample[max(0, int(middle) - margin)]
    high = sample[min(sample.size - 1, int(middle) + margin)]
    below = int(np.count_nonzero(values < low))
    inside = values[(values >= low) & (values <= high)]
    if not below < k <= below + inside.size:  # the sample was unlucky: rare, and only slower
        return np.partition(values, k - 1)[k - 1]
    return np.partition(inside, k - below - 1)[k - below - 1]
