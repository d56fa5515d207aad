"""Random numbers from a key and a counter, the same on every device, in any order and in any stacking.

Counter-based (Salmon et al., 2011): element i of a draw is a hash of (key, i). Torch's own generators keep a state
that a client alone and a client inside a cohort would advance differently. The mixing constants are those of
Wellons' lowbias32 search (2018).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

_LOW = 0xFFFFFFFF
KEYS = 0x7FFFFFFFFFFFFFFF  # keys are the non-negative 64-bit integers
STRIDE = 0x9E3779B97F4A7C15 & KEYS  # from the key of one training step to the next


_GENERATOR = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's own generator within the block, and restore it. All threads share it, so one thread at a time."""
    with _GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def client_seed(seed: int, round: int, client: int, *more: int) -> np.random.SeedSequence:
    """The seed of all randomness of one client in one round; `more` names a part of it, such as an epoch."""
    return np.random.SeedSequence([seed, round, client, *more])


def key_of(seed: np.random.SeedSequence) -> int:
    """A 63-bit key."""
    return int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1))


def step_key(key: int, step: int) -> int:
    """The key of one training step."""
    return (key + STRIDE * (step + 1)) & KEYS


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = x & _LOW
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


def salted(salt: int) -> int:
    """A number that makes the draws of one use of a key differ from those of another."""
    return 0x632BE5AB * (salt + 1)


def uniform(key: torch.Tensor, count: int, salt: int = 0) -> torch.Tensor:
    """`count` float32 numbers in [0, 1) from an int64 key, or `count` from each of several keys."""
    counter = torch.arange(count, device=key.device)
    key = key.unsqueeze(-1)
    inner = _mix(key)
    outer = _mix(inner + (key >> 31) + salted(salt))  # both halves of the key are in both words
    bits = _mix(_mix(counter + inner) ^ outer)
    return (bits >> 8).to(torch.float32) * 2.0**-24


class KeyedDropout(nn.Module):
    """`nn.Dropout` that draws from `key`, a buffer that the trainer sets before every step."""

    key: torch.Tensor

    def __init__(self, p: float, salt: int, inplace: bool = False) -> None:
        super().__init__()
        self.p, self.salt, self.inplace = p, salt, inplace
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero a random part of `x` and scale up the rest, while training."""
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0
        keep = uniform(self.key, x.numel(), self.salt).reshape(x.shape) >= self.p
        factor = keep * (1 / (1 - self.p))
        return x.mul_(factor) if self.inplace else x * factor


def pad_crop_flip(x: torch.Tensor, key: torch.Tensor, pad: int = 4) -> torch.Tensor:
    """Images (batch, channels, height, width), each shifted by up to `pad` pixels and mirrored with probability ½."""
    batch, _, height, width = x.shape
    draw = uniform(key, 3 * batch, salt=-2).reshape(batch, 3)
    top, left = (draw[:, :2] * (2 * pad + 1)).long().unbind(1)
    rows = top[:, None] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device)
    columns = left[:, None] + torch.where(draw[:, 2:] < 0.5, columns, width - 1 - columns)
    padded = nn.functional.pad(x, (pad, pad, pad, pad))
    return padded[
        torch.arange(batch, device=x.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]
    ].movedim(-1, 1)
