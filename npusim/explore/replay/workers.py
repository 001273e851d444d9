"""Work shared by processes: a `map` whose results come in order, whoever computed them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

Progress = Callable[[str, int, int], None]  #: stage, done, all of it

T = TypeVar("T")
R = TypeVar("R")

_MIN_ITEMS = 24  #: below this, starting processes costs more than they save
_CHUNKS = 8  #: per process: small enough to even out, large enough to send cheaply
_MAX_JOBS = 8


class Each(Protocol):
    """Applies a function to all items of a stage, in order."""

    def __call__(self, stage: str, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results, one per item."""


def default_jobs() -> int:
    """As many processes as the machine has cores, within reason."""
    return min(os.cpu_count() or 1, _MAX_JOBS)


@contextmanager
def workers(jobs: int, progress: Progress | None = None) -> Iterator[Each]:
    """A map over `jobs` processes, started when a stage is long enough to need them.

    Each stage has its own processes, so that they inherit what is loaded by then.
    """

    def each(stage: str, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if jobs <= 1 or len(items) < _MIN_ITEMS:
            return _collect(stage, map(work, items), len(items))
        with ProcessPoolExecutor(jobs) as pool:
            chunk = max(1, len(items) // (jobs * _CHUNKS))
            return _collect(stage, pool.map(work, items, chunksize=chunk), len(items))

    def _collect(stage: str, results: Iterable[R], total: int) -> list[R]:
        found = []
        for result in results:
            found.append(result)
            if progress is not None:
                progress(stage, len(found), total)
        return found

    yield each
