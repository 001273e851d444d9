"""Threads that share out the pieces of an operator; numpy's loops run beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController

from npusim.ops.scratch import Scratch

ENOUGH = 8  #: pieces; with fewer, another thread wakes up when the work is as good as done
THREADS = 8  #: at most: between numpy's loops, only one thread runs


class Workers:
    """As many threads as BLAS would use (`OPENBLAS_NUM_THREADS` and the like say how many).

    BLAS has one thread in each piece: its own would wait for each other in every small product.
    A few pieces are done in this thread.
    """

    def __init__(self) -> None:
        self._blas = ThreadpoolController().select(user_api="blas")
        threads = max((lib["num_threads"] for lib in self._blas.info()), default=1)
        self.threads = min(threads, THREADS)
        self._scratch = [Scratch() for _ in range(self.threads)]
        self._pool = ThreadPoolExecutor(max(1, self.threads - 1), "npusim")
        if self.threads > 1:  # the first piece shall not wait for the threads' start
            wait([self._pool.submit(int) for _ in range(self.threads - 1)])

    def run(self, pieces: Sequence[Callable[[Scratch], None]], whole: bool = False) -> None:
        """Run all pieces, in any order, each with its thread's scratch; an exception is raised.

        Args:
            whole: the pieces are large products, one after the other, with all of BLAS's threads.
        """
        todo = iter(pieces)  # one step of a list's iterator is one step for all threads

        def take(scratch: Scratch) -> None:
            for piece in todo:
                scratch.used = 0
                piece(scratch)

        own, *theirs = self._scratch
        if self.threads == 1 or whole:
            return take(own)
        helpers = self.threads - 1 if len(pieces) >= ENOUGH else 0
        with self._one_blas_thread():
            others = [self._pool.submit(take, s) for s in theirs[:helpers]]
            take(own)
            for other in others:
                if not other.cancel():  # one that has yet to wake up is too late
                    other.result()

    @contextmanager
    def _one_blas_thread(self) -> Iterator[None]:
        """As `ThreadpoolController.limit`, which takes as long as a small product."""
        threads = [(lib, lib.get_num_threads()) for lib in self._blas.lib_controllers]
        for lib, _ in threads:
            lib.set_num_threads(1)
        try:
            yield
        finally:
            for lib, number in threads:
                lib.set_num_threads(number)
