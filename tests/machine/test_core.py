"""One core: closed forms at t - 1 and t, flags, queues, stalls, races, deadlocks; both engines."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np
import pytest
from tiny import CHIPS, COLD, HOT, Program, Stepped, as_kernel, one_block, run_alone, vector_args

from npusim.errors import AccountingError, DeadlockError
from npusim.kernels.lang import Kernel
from npusim.machine.gm import GmState
from npusim.machine.launch import run_tile_level, time_launch
from npusim.program.isa import PIPE_NAMES, Instr, Kind, Pipe
from npusim.program.kernel import Traffic
from npusim.program.region import Region

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
ENGINES = ("simpy", "fast")
NAMES = tuple(CHIPS)


def ub(n: int, offset: int = 0, dtype: np.dtype = F16) -> Region:
    """n elements at a byte offset of UB."""
    return Region.dense("UB", -1, offset, (n,), dtype)


def fractals(space: str, *shape: int, dtype: np.dtype = F16) -> Region:
    """Fractals at the start of a buffer."""
    return Region.dense(space, -1, 0, (*shape, 16, 16), dtype)


def busy(k: Kernel, pipe: Pipe, occupy: int, tail: int = 0, serial: bool = False) -> Instr:
    """An instruction that does nothing for a while."""
    issue = k.chip.core.scalar.issue
    return Instr(Kind.LOCAL, pipe, "wait", issue, occupy, tail, None, serial)


# -- one instruction ----


@pytest.mark.parametrize("name", NAMES)
def test_one_mmad(name: str) -> None:
    """Mb·Kb·Nb + head occupies the cube; the result is there a tail later, not a cycle before."""
    chip = CHIPS[name]
    a, b, c = fractals("L0A", 2, 2), fractals("L0B", 2, 1), fractals("L0C", 1, 2, dtype=F32)

    def program(k: Kernel) -> Iterator[Instr]:
        yield k.mmad(c, a, b, accumulate=False)

    cube = chip.core.cube
    ready = chip.core.scalar.issue + 2 * 2 * 1 + cube.head + cube.tail
    core = Stepped(chip, program)
    core.view(a)[...] = 1
    core.view(b)[...] = 2
    assert not np.any(core.before(ready).view(c) == 64)
    assert np.all(core.at(ready).view(c) == 2 * 32)
    for engine in ENGINES:
        stats = run_alone(chip, program, engine)
        assert stats.cycles == ready
        assert stats.busy[Pipe.M] == 4 + cube.head


@pytest.mark.parametrize("name", NAMES)
def test_one_vector_repeat(name: str) -> None:
    chip = CHIPS[name]

    def program(k: Kernel) -> Iterator[Instr]:
        yield k.vec("adds", ub(128, 256), ub(128), scalar=1.0)

    vec = chip.core.vector
    occupied = ceil(vec.costs["unary"].b16) + vec.head
    ready = chip.core.scalar.issue + occupied + vec.tail
    core = Stepped(chip, program)
    core.view(ub(128))[...] = 3
    assert not np.any(core.before(ready).view(ub(128, 256)) == 4)
    assert np.all(core.at(ready).view(ub(128, 256)) == 4)
    for engine in ENGINES:
        stats = run_alone(chip, program, engine)
        assert (stats.cycles, stats.busy[Pipe.V]) == (ready, occupied)


@pytest.mark.parametrize("gm", [HOT, COLD], ids=["hit", "miss"])
@pytest.mark.parametrize("name", NAMES)
def test_one_load(name: str, gm: GmState) -> None:
    """Issue, head, bytes over the slowest of port, L2 and HBM, latency of L2 and HBM."""
    chip, n = CHIPS[name], 2048

    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(n), k.input(0))

    mte2 = chip.core.mte2
    rate = min(mte2.ub_rate, chip.l2_rate, chip.hbm_rate if gm is COLD else chip.l2_rate)
    latency = chip.l2.read_latency + (chip.hbm.latency if gm is COLD else 0)
    occupied = mte2.head + ceil(2 * n / rate)
    ready = chip.core.scalar.issue + occupied + latency
    core = Stepped(chip, program, n, gm)
    assert not np.any(core.before(ready).view(ub(n)) == core.x)
    assert np.all(core.at(ready).view(ub(n)) == core.x)
    for engine in ENGINES:
        stats = run_alone(chip, program, engine, gm, n)
        assert (stats.cycles, stats.busy[Pipe.MTE2]) == (ready, occupied)
        assert stats.moved == {0: 2 * n}


@pytest.mark.parametrize("name", NAMES)
def test_one_store(name: str) -> None:
    chip, n = CHIPS[name], 1024

    def program(k: Kernel) -> Iterator[Instr]:
        yield k.store(k.output(0), ub(n))

    mte3 = chip.core.mte3
    rate = min(mte3.rate, chip.l2_rate, chip.hbm_rate)
    ready = chip.core.scalar.issue + mte3.head + ceil(2 * n / rate) + chip.l2.write_latency
    core = Stepped(chip, program, n)
    core.view(ub(n))[...] = 5
    assert not np.any(core.before(ready).y)
    assert np.all(core.at(ready).y == 5)
    for engine in ENGINES:
        assert run_alone(chip, program, engine, n=n).cycles == ready


def test_reads_at_the_start_writes_at_the_end() -> None:
    """A source overwritten after the start does not matter; a result is not there before."""
    chip = CHIPS["toy"]

    def program(k: Kernel) -> Iterator[Instr]:
        yield k.store(k.output(0), ub(256))
        yield k.vec("dup", ub(256), scalar=9.0)

    core = Stepped(chip, program)
    core.view(ub(256))[...] = 5
    core.env.run()
    assert np.all(core.y == 5)
    assert np.all(core.view(ub(256)) == 9)


# -- flags and queues ----


def copy_program(flags: bool) -> Program:
    """Load, add one, store; with or without the flags between the pipes."""

    def program(k: Kernel) -> Iterator[Instr]:
        x, y = ub(256), ub(256, 512)
        yield k.load(x, k.input(0))
        if flags:
            yield k.set_flag(Pipe.MTE2, Pipe.V, 1)
            yield k.wait_flag(Pipe.MTE2, Pipe.V, 1)
        yield k.vec("adds", y, x, scalar=1.0)
        if flags:
            yield k.set_flag(Pipe.V, Pipe.MTE3, 2)
            yield k.wait_flag(Pipe.V, Pipe.MTE3, 2)
        yield k.store(k.output(0), y)

    return program


@pytest.mark.parametrize("name", NAMES)
def test_flags_order_the_pipes_and_a_missing_one_gives_wrong_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chip, args = CHIPS[name], vector_args(256)
    plan = one_block({0: Traffic(512, 512), 1: Traffic(512, 512)})
    x = np.arange(256, dtype=np.float16)
    for flags in (True, False):
        y = np.zeros(256, np.float16)
        as_kernel(monkeypatch, copy_program(flags))
        run_tile_level(chip, "Tiny", args, plan, [x, y])
        assert np.array_equal(y, x + 1) is flags


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_a_chain_of_flags_takes_the_sum_of_its_parts(name: str, engine: str) -> None:
    chip = CHIPS[name]
    core, vec = chip.core, chip.core.vector
    rate = min(core.mte2.ub_rate, chip.l2_rate, chip.hbm_rate)
    loaded = core.scalar.issue + core.mte2.head + ceil(512 / rate)
    loaded += chip.l2.read_latency + chip.hbm.latency
    start = loaded + 2 * core.scalar.flag  # set in MTE2, wait in V
    done = start + ceil(2 * vec.costs["unary"].b16) + vec.head + vec.tail
    stored = done + 2 * core.scalar.flag + core.mte3.head
    stored += ceil(512 / min(core.mte3.rate, chip.l2_rate, chip.hbm_rate)) + chip.l2.write_latency
    stats = run_alone(chip, copy_program(True), engine)
    assert stats.cycles == stored
    assert list(stats.stall[Pipe.V]) == ["mte2"]
    assert list(stats.stall[Pipe.MTE3]) == ["vector"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_nth_wait_takes_the_nth_set(engine: str) -> None:
    chip = CHIPS["toy"]

    def program(k: Kernel) -> Iterator[Instr]:
        for _ in range(3):
            yield busy(k, Pipe.MTE1, 100)
            yield k.set_flag(Pipe.MTE1, Pipe.M, 7)
        for _ in range(3):
            yield k.wait_flag(Pipe.MTE1, Pipe.M, 7)
            yield busy(k, Pipe.M, 10)

    stats = run_alone(chip, program, engine)
    flag = chip.core.scalar.flag
    third_set = chip.core.scalar.issue + 3 * (100 + flag)
    assert stats.cycles == third_set + flag + 10


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_a_full_queue_stalls_the_scalar_unit(name: str, engine: str) -> None:
    """The queue holds `depth` behind the one that runs; the next waits for the second to start."""
    chip = CHIPS[name]
    depth, issue, long = chip.core.scalar.queue_depth, chip.core.scalar.issue, 10_000

    def program(count: int) -> Program:
        def body(k: Kernel) -> Iterator[Instr]:
            for _ in range(count):
                yield busy(k, Pipe.V, long)

        return body

    fits = run_alone(chip, program(depth + 1), engine)
    assert fits.scalar_stall == 0
    full = run_alone(chip, program(depth + 2), engine)
    assert full.scalar_stall == (issue + long) - (depth + 2) * issue
    assert full.cycles == issue + (depth + 2) * long
    assert full.scalar_busy == (depth + 2) * issue


@pytest.mark.parametrize("engine", ENGINES)
def test_an_instruction_that_waits_has_left_the_queue(engine: str) -> None:
    """V holds a wait_flag and `depth` behind it; only one more stalls, until the flag comes."""
    chip = CHIPS["toy"]
    depth, issue, flag = (
        chip.core.scalar.queue_depth, chip.core.scalar.issue, chip.core.scalar.flag
    )  # fmt: skip

    def program(behind: int) -> Program:
        def body(k: Kernel) -> Iterator[Instr]:
            yield busy(k, Pipe.MTE1, 10_000)
            yield k.set_flag(Pipe.MTE1, Pipe.V, 1)
            yield k.wait_flag(Pipe.MTE1, Pipe.V, 1)
            for _ in range(behind):
                yield busy(k, Pipe.V, 5)

        return body

    assert run_alone(chip, program(depth), engine).scalar_stall == 0
    held = run_alone(chip, program(depth + 1), engine)
    second_starts = issue + 10_000 + 2 * flag  # set in MTE1, wait in V
    assert held.scalar_stall == second_starts - (3 + depth + 1) * issue


@pytest.mark.parametrize("engine", ENGINES)
def test_a_serial_instruction_waits_for_all_results_of_its_pipe(engine: str) -> None:
    chip = CHIPS["toy"]

    def program(serial: bool) -> Program:
        def body(k: Kernel) -> Iterator[Instr]:
            yield busy(k, Pipe.V, 50, tail=30)
            yield busy(k, Pipe.V, 5, tail=30, serial=serial)

        return body

    issue = chip.core.scalar.issue
    free = run_alone(chip, program(False), engine)
    assert (free.cycles, free.stall[Pipe.V]) == (issue + 50 + 5 + 30, {})
    held = run_alone(chip, program(True), engine)
    assert (held.cycles, held.stall[Pipe.V]) == (issue + 50 + 30 + 5 + 30, {"barrier": 30})


def test_dependent_vector_instructions_are_serial() -> None:
    k = Kernel(CHIPS["toy"], vector_args(256), 0, False)
    first = k.vec("adds", ub(64), ub(64, 512), scalar=1.0)
    independent = k.vec("adds", ub(64, 1024), ub(64, 512), scalar=1.0)
    dependent = k.vec("adds", ub(64, 2048), ub(64), scalar=1.0)
    assert [i.serial for i in (first, independent, dependent)] == [False, False, True]


# -- errors ----


def lonely_wait(behind: int) -> Program:
    """V waits for a flag that nobody sets, with `behind` instructions behind it."""

    def program(k: Kernel) -> Iterator[Instr]:
        yield busy(k, Pipe.MTE2, 10)
        yield k.wait_flag(Pipe.MTE2, Pipe.V, 3)
        for _ in range(behind):
            yield busy(k, Pipe.V, 10)

    return program


@pytest.mark.parametrize("behind", [0, 100])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_deadlock_names_core_pipe_and_flag(
    engine: str, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_kernel(monkeypatch, lonely_wait(behind))
    with pytest.raises(DeadlockError) as error:
        time_launch(CHIPS["toy"], "Tiny", vector_args(256), one_block(), engine=engine)
    assert "kernel Tiny" in error.value.what
    assert "core class 0: vector waits at vector.wait_flag mte2→vector #3" in error.value.what


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_that_the_plan_does_not_state_are_an_error(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_kernel(monkeypatch, copy_program(True))
    args = vector_args(256)
    right = {0: Traffic(512, 512), 1: Traffic(512, 512)}
    result = time_launch(CHIPS["toy"], "Tiny", args, one_block(right), engine=engine)
    assert (result.l2_bytes, result.hbm_bytes) == (1024, 1024)
    for wrong in ({**right, 1: Traffic(512, 480)}, {0: right[0]}):
        with pytest.raises(AccountingError, match="plan"):
            time_launch(CHIPS["toy"], "Tiny", args, one_block(wrong), engine=engine)


def test_accounts_that_do_not_close_are_an_error() -> None:
    stats = run_alone(CHIPS["toy"], copy_program(True))
    for p, name in enumerate(PIPE_NAMES[:6]):
        stats.idle[p] += 1
        with pytest.raises(AccountingError, match=f"pipe {name}"):
            stats.check("Tiny")
        stats.idle[p] -= 1
    stats.idle[Pipe.V] -= stats.cycles
    stats.busy[Pipe.V] += stats.cycles
    with pytest.raises(AccountingError, match="pipe vector"):
        stats.check("Tiny")
