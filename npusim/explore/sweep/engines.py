"""Engines: how many points run at a time, and where. Each gives rows as they finish."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache

from npusim.explore.sweep.evaluate import Evaluator, Job, Row, failed_row

#: Rows of the jobs, in the order in which they finish.
Engine = Callable[[Sequence[Job], int], Iterator[Row]]
Run = Callable[[Job], Row]
#: Thresholds of a worker's garbage collection. Points make many objects and few cycles: looking for
#: them takes a tenth of the time at Python's own thresholds.
GARBAGE = (50_000, 20, 100)
TRIES = 2  #: of a point whose worker dies
DIED = (
    "error: the worker died while it ran this point | allowed: points that fit in memory | "
    "fix: use fewer workers (-j), or a smaller model"
)


def run_here(jobs: Sequence[Job], workers: int) -> Iterator[Row]:
    """One after the other, in this process."""
    evaluator = Evaluator()
    for job in jobs:
        yield evaluator.row(job)


@lru_cache(maxsize=1)
def worker() -> Evaluator:
    """The evaluator of a worker process: what its points have in common is computed once."""
    return Evaluator()


def run_job(job: Job) -> Row:
    """One point, in a worker process."""
    return worker().row(job)


def _begin_worker() -> None:
    """Ctrl-C is the parent's to handle; garbage is looked for less often."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(*GARBAGE)


class _Lane:
    """A worker process and the points that wait for it, neighbours of each other."""

    def __init__(self, jobs: Sequence[Job], run: Run) -> None:
        self.waiting = deque(jobs)
        self._run = run
        self._pool: ProcessPoolExecutor | None = None
        self.job: Job | None = None
        self.tries = 0

    def start(self) -> Future[Row]:
        """Run the next point, or once more the one whose worker died."""
        if self.job is None:
            self.job, self.tries = self.waiting.popleft(), 0
        self.tries += 1
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, _begin_worker)
        return self._pool.submit(self._run, self.job)

    def finish(self, future: Future[Row]) -> Row | None:
        """The row; None when the worker died and the point is to be tried again."""
        assert self.job is not None
        try:
            row = future.result()
        except BrokenProcessPool:
            self.close()
            self._pool = None
            if self.tries < TRIES:
                return None
            row = failed_row(self.job, DIED)
        self.job = None
        return row

    def close(self) -> None:
        """End the worker."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def run_local(jobs: Sequence[Job], workers: int, run: Run = run_job) -> Iterator[Row]:
    """On `workers` processes of this machine. A worker that dies is replaced.

    Each has a stretch of neighbouring points, which have the most in common; one that is through
    takes half of what the slowest has left.

    Args:
        run: what a worker does with a point.
    """
    workers = max(1, min(workers, len(jobs)))
    if workers == 1:
        yield from run_here(jobs, 1)
        return
    ends = [len(jobs) * i // workers for i in range(workers + 1)]
    lanes = [_Lane(jobs[a:b], run) for a, b in itertools.pairwise(ends)]
    try:
        running = {lane.start(): lane for lane in lanes}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                lane = running.pop(future)
                row = lane.finish(future)
                if lane.job is None and not lane.waiting:
                    _share_out(lane, lanes)
                if lane.job is not None or lane.waiting:
                    running[lane.start()] = lane  # before the row is written: no worker waits
                if row is not None:
                    yield row
    finally:
        for lane in lanes:
            lane.close()


def _share_out(idle: _Lane, lanes: Sequence[_Lane]) -> None:
    """Give an idle lane the later half of the longest queue."""
    longest = max(lanes, key=lambda lane: len(lane.waiting))
    for _ in range((len(longest.waiting) + 1) // 2):
        idle.waiting.appendleft(longest.waiting.pop())
