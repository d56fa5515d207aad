"""The plan of a batch: which program serves which samples, and on how many threads.

Input: a network and the shape of a batch. Output: a `BatchPlan`, whose jobs the engine runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..layout.network_layout import SampleBlock
from ..lowering.program import Program
from .jobs import Jobs, JobWords
from .sharing import SharingPolicy
from .thread_pool import ThreadPool


class Job(NamedTuple):
    """Some samples of a batch: a program, where input and output begin, in bytes, and how many samples."""

    program: Program
    source: int
    target: int
    samples: int


class Span(NamedTuple):
    """Samples of a batch that one run of a program serves."""

    block: SampleBlock
    first: int
    samples: int


@dataclass
class BatchPlan:
    """How a batch of one shape is served: by the calling thread alone, or by several threads of the pool."""

    output_shape: tuple[int, ...]
    jobs: list[Job]
    threads: int
    shared: Program | None = None  # whose workers serve the only job together
    policy: SharingPolicy = field(default_factory=SharingPolicy)
    pool: ThreadPool | None = None  # in whose arenas `pool_jobs` run
    pool_jobs: Jobs | None = None
    alone: list[tuple[Program, Jobs]] = field(init=False)  # for the calling thread, program by program

    def __post_init__(self) -> None:
        programs = dict.fromkeys(job.program for job in self.jobs)
        self.alone = [(program, self._jobs_of(program)) for program in programs]

    def _jobs_of(self, program: Program) -> Jobs:
        address = program.addresses[0]
        return Jobs.of([JobWords(address, 0, 0, *job[1:]) for job in self.jobs if job.program is program])

    def jobs_in(self, pool: ThreadPool, pool_threads: int) -> Jobs:
        """The jobs of all threads, in the arenas of a pool."""
        if self.pool_jobs is None or self.pool is not pool:
            self.pool_jobs, self.pool = Jobs.of(list(self._placed(pool, pool_threads))), pool
        return self.pool_jobs

    def _placed(self, pool: ThreadPool, pool_threads: int) -> Iterator[JobWords]:
        if self.shared is not None:
            arena = pool.arena(self.shared, self.threads)
            for address in self.shared.addresses:
                yield JobWords(address, arena.address, samples=self.jobs[0].samples)
            return
        for program, *ends in self.jobs:
            arena = pool.arena(program, pool_threads)
            yield JobWords(program.addresses[0], arena.address, arena.step, *ends)


def spans_of(samples: int, lanes: int, wide: int, threads: int, blocks: bool = True) -> Iterator[Span]:
    """Divide a batch into spans: `blocks` of `wide` vectors of samples, and a small rest sample by sample."""
    size = wide * lanes
    rest = samples % size if wide == 1 and samples % size <= lanes // 4 else 0
    rest = rest if blocks else samples
    together = samples - rest
    count = -(-together // size)
    even = -(-count // threads) * threads
    if together >= even * size // 2:
        count = even  # so that every thread gets as many
    for k in range(count):
        start, end = together * k // count, together * (k + 1) // count
        yield Span(SampleBlock(lanes, wide=wide), start, end - start)
    for sample in range(together, samples):
        yield Span(SampleBlock(lanes, single=True), sample, 1)
