"""Threads that share out the pieces of an operator; numpy's loops run beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from threadpoolctl import ThreadpoolController

from npusim.ops.scratch import Scratch


class Workers:
    """As many threads as BLAS would use (`OPENBLAS_NUM_THREADS` and the like say how many).

    BLAS has one thread in each piece: its own would wait for each other in every small product.
    """

    def __init__(self) -> None:
        self._blas = ThreadpoolController().select(user_api="blas")
        self.threads = max((lib["num_threads"] for lib in self._blas.info()), default=1)
        self._scratch = [Scratch() for _ in range(self.threads)]
        self._pool: ThreadPoolExecutor | None = None

    def run(self, pieces: Sequence[Callable[[Scratch], None]], whole: bool = False) -> None:
        """Run all pieces, in any order, each with its thread's scratch; an exception is raised.

        Args:
            whole: the pieces are large products, one after the other, with all of BLAS's threads.
        """
        todo = iter(pieces)  # one step of a list's iterator is one step for all threads

        def take(scratch: Scratch) -> None:
            for piece in todo:
                piece(scratch)

        own, *theirs = self._scratch
        if self.threads == 1 or whole:
            return take(own)
        helpers = min(self.threads, len(pieces)) - 1
        if helpers and self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, "npusim")
        with self._blas.limit(limits=1):
            others = [self._pool.submit(take, s) for s in theirs[:helpers]] if self._pool else []
            take(own)
            for other in others:
                if not other.cancel():  # one that has yet to wake up is too late
                    other.result()
