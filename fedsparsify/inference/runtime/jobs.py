"""Jobs: programs to run on some samples of a batch, as the kernels read them.

Input: addresses and counts per job. Output: an array of 64-bit words (see `kernels/job_words.py`) and its address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.job_words import JOB_WORDS


class JobWords(NamedTuple):
    """One job. Arena and arena_step are for jobs in job slots; offsets into batch and output count bytes."""

    program: int  # address of a program's header
    arena: int = 0  # address of the first thread's arena
    arena_step: int = 0  # bytes from one thread's arena to the next
    x: int = 0  # where the samples begin in the batch
    y: int = 0  # where their logits begin in the output
    samples: int = 1


assert JobWords._fields == JOB_WORDS


class Jobs(NamedTuple):
    """The words of some jobs, their address, and the number of jobs."""

    words: NDArray[np.int64]
    address: int
    size: int

    @classmethod
    def of(cls, jobs: Sequence[JobWords]) -> Jobs:
        """From the words of each."""
        words = np.array(jobs, np.int64).reshape(len(jobs), len(JOB_WORDS))
        return cls(words, words.ctypes.data, len(jobs))
