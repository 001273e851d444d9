"""Pieces of an operator on threads: all run, once, with one BLAS thread; errors come out."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import npusim
from npusim.machine.workers import ENOUGH, Workers
from npusim.ops.scratch import Scratch


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_every_piece_runs_once(threads: int, count: int) -> None:
    done: list[int] = []
    with threadpool_limits(threads, user_api="blas"):
        workers = Workers()
        workers.run([lambda _, i=i: done.append(i) for i in range(count)])
    assert sorted(done) == list(range(count))


def test_pieces_run_beside_each_other_with_one_blas_thread_each() -> None:
    meeting, seen = threading.Barrier(2, timeout=20), []

    def piece(_: Scratch) -> None:
        meeting.wait()  # two threads, or nobody gets further
        seen.append({i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"})

    with threadpool_limits(2, user_api="blas"):
        workers = Workers()
        assert workers.threads == 2
        workers.run([piece] * ENOUGH)
        assert {i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas"} == {2}
    assert seen == [{1}] * ENOUGH


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_piece_is_raised(threads: int) -> None:
    def fail(_: Scratch) -> None:
        raise ZeroDivisionError

    with threadpool_limits(threads, user_api="blas"), pytest.raises(ZeroDivisionError):
        Workers().run([fail, *[lambda _: None] * 20])


def test_results_do_not_depend_on_the_threads() -> None:
    chip = npusim.load_chip("ascend910a")
    model = npusim.load_model("mobilenetv2", batch=4)
    exe = npusim.compile_graph(model.graph, chip)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            found.append(npusim.run(exe, chip, inputs=npusim.make_inputs(model)).outputs)
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])
