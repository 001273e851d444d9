"""The cluster engine: Dask distributed hands points to workers, and again where one dies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from npusim.errors import UnsupportedError
from npusim.explore.sweep.engines import DIED, Engine, Run, run_job
from npusim.explore.sweep.evaluate import Job, Row, failed_row

if TYPE_CHECKING:
    from distributed import Client

_TRIES = 3  #: of a point whose worker dies
_PATIENCE = 10  #: seconds to reach a scheduler


def dask_engine(address: str | None = None) -> Engine:
    """The engine on the scheduler at an address, or on workers that it starts here.

    Raises:
        UnsupportedError: Dask distributed is not installed.
    """
    try:
        import distributed
    except ImportError:
        raise UnsupportedError(
            "engine dask without Dask", "dask and distributed", "pip install 'npusim[cluster]'"
        ) from None

    def run(jobs: Sequence[Job], workers: int) -> Iterator[Row]:
        if address is not None:
            with _connected(address) as client:
                yield from rows_of(client, jobs)
            return
        with (
            distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None,
                silence_logs=50,
            ) as cluster,
            distributed.Client(cluster) as client,
        ):  # fmt: skip
            yield from rows_of(client, jobs)

    return run


def _connected(address: str) -> Client:
    from distributed import Client

    try:
        return Client(address, timeout=_PATIENCE)
    except (OSError, ValueError) as error:
        raise UnsupportedError(
            f"Dask scheduler {address}: {error}".splitlines()[0],
            "the address of a scheduler that runs, e.g. tcp://node1:8786",
            "start one with `dask scheduler`, and workers with `dask worker ADDRESS`",
        ) from None


def rows_of(client: Client, jobs: Sequence[Job], run: Run = run_job) -> Iterator[Row]:
    """Rows of the jobs as the workers of a client finish them.

    Args:
        run: what a worker does with a point.
    """
    import dask
    from distributed import KilledWorker, as_completed

    with dask.config.set({"distributed.scheduler.allowed-failures": _TRIES - 1}):
        futures = client.map(run, jobs, pure=False)
        of = {future.key: job for future, job in zip(futures, jobs, strict=True)}
        for future in as_completed(futures):
            try:
                yield future.result()
            except KilledWorker:
                yield failed_row(of[future.key], DIED)
