"""Blocks of several cores: flags between them, phases, and that both engines agree on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import random_instruction, random_memory
from tiny import CHIPS, COLD, vector_args

from npusim.chip.spec import ChipSpec
from npusim.errors import DeadlockError
from npusim.kernels.cross_core import await_signal, signal
from npusim.kernels.lang import Kernel, TileKernel
from npusim.machine import launch as launching
from npusim.machine.core import SharedMemory
from npusim.machine.gm import GmState
from npusim.machine.launch import run_tile_level, start_blocks, time_launch
from npusim.machine.scoreboard import Scoreboard
from npusim.machine.stats import CoreStats
from npusim.program.isa import Instr, Kind, Pipe
from npusim.program.kernel import KernelArgs, Member, Plan, Traffic
from npusim.program.region import Region

Program = Callable[[Kernel], Iterator[Instr]]
B2 = CHIPS["ascend910b2"]


def run_block(
    chip: ChipSpec, programs: list[tuple[Program, int]], engine: str, gm: GmState, weight: int = 1
) -> list[CoreStats]:
    """One class of blocks of (program, how many such cores)."""
    members = []
    for program, count in programs:
        k = Kernel(chip, vector_args(256), 0, False)
        members.append(Member(k, program(k), count))
    if engine == "fast":
        board = Scoreboard(chip, gm, True)
        board.add_block(members, weight)
        stats = board.run("Tiny")
    else:
        env = simpy.Environment()
        cores = start_blocks(env, chip, SharedMemory(env, chip), gm, [(members, weight)])
        env.run()
        stats = [c.stats for c in cores]
    for s in stats:
        s.check("Tiny")
    return stats


def work(pipe: Pipe, cycles: int) -> Instr:
    """Something that takes a while."""
    return Instr(Kind.LOCAL, pipe, "work", 0, cycles)


@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_a_core_waits_for_another(engine: str) -> None:
    def cube(k: Kernel) -> Iterator[Instr]:
        yield work(Pipe.M, 1000)
        yield signal(k, 1, Pipe.M, Pipe.V, 0)

    def vector(k: Kernel) -> Iterator[Instr]:
        yield work(Pipe.V, 10)
        yield await_signal(k, Pipe.M, Pipe.V, 0)
        yield work(Pipe.V, 100)

    first, second = run_block(B2, [(cube, 1), (vector, 1)], engine, COLD)
    flag = B2.core.scalar.flag
    assert first.cycles == 1000 + flag
    assert second.cycles == 1000 + flag + flag + 100
    assert second.stall[Pipe.V]["cube"] == 990 + flag


@pytest.mark.parametrize("engine", ["fast", "simpy"])
def test_what_a_flag_lets_go_on_may_issue_more_than_a_queue_holds(engine: str) -> None:
    def sender(k: Kernel) -> Iterator[Instr]:
        yield work(Pipe.V, 5000)
        yield signal(k, 1, Pipe.V, Pipe.V, 0)

    def receiver(k: Kernel) -> Iterator[Instr]:
        yield await_signal(k, Pipe.V, Pipe.V, 0)
        for _ in range(3 * B2.core.scalar.queue_depth):
            yield work(Pipe.V, 7)

    stats = run_block(B2, [(sender, 1), (receiver, 1)], engine, COLD)
    flags = 2 * B2.core.scalar.flag
    assert stats[1].cycles == 5000 + flags + 3 * 7 * B2.core.scalar.queue_depth


def test_a_signal_that_never_comes_is_a_deadlock() -> None:
    def waits(k: Kernel) -> Iterator[Instr]:
        yield await_signal(k, Pipe.M, Pipe.V, 0)

    with pytest.raises(DeadlockError, match="vector waits"):
        run_block(B2, [(waits, 1)], "fast", COLD)


def _ring(seed: int, number: int, cores: int, rounds: int) -> Program:
    """Random work, then the next core's turn; two rounds may be under way."""

    def program(k: Kernel) -> Iterator[Instr]:
        rng = Random(seed * 7 + number)
        for i in range(rounds):
            if number or i >= 2:
                yield await_signal(k, Pipe.MTE3, Pipe.MTE2, number)
            for pipe in (Pipe.MTE2, Pipe.V, Pipe.MTE3):
                for _ in range(rng.randint(1, 4)):
                    yield random_instruction(rng, pipe)
                if pipe is not Pipe.MTE3:
                    after = Pipe.V if pipe is Pipe.MTE2 else Pipe.MTE3
                    yield k.set_flag(pipe, after, 1)
                    yield k.wait_flag(pipe, after, 1)
            if number < cores - 1 or i < rounds - 2:
                following = (number + 1) % cores
                yield signal(k, following, Pipe.MTE3, Pipe.MTE2, following)

    return program


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(1, 12))
def test_engines_agree_on_blocks(seed: int, cores: int, rounds: int) -> None:
    rng = Random(seed)
    gm, weight = random_memory(rng), rng.randint(1, 12)
    programs = [(_ring(seed, n, cores, rounds), rng.randint(1, 2)) for n in range(cores)]

    def numbers(stats: list[CoreStats]) -> list[object]:
        return [
            (s.weight, s.cycles, s.busy, s.idle, [Counter(d) for d in s.stall], s.moved,
             s.instructions, s.scalar_busy, s.scalar_stall)
            for s in stats
        ]  # fmt: skip

    want = numbers(run_block(B2, programs, "simpy", gm, weight))
    assert numbers(run_block(B2, programs, "fast", gm, weight)) == want


class _Relay(TileKernel):
    """Core 0 stores x into workspace; core 1 takes it from there to y; phase 1 adds one.

    `told`: whether core 1 waits for core 0.
    """

    core_type = "MIX"
    told = True

    @classmethod
    def members(
        cls, args: KernelArgs, chip: ChipSpec, plan: Plan, block: int, phase: int, functional: bool
    ) -> list[Member]:
        ks = [Kernel(chip, args, block, functional) for _ in range(2)]
        if phase:
            return [Member(ks[0], _move(ks[0], 1, 1, 1.0))]
        first, second = _move(ks[0], 0, 2, 0.0), _move(ks[1], 2, 1, 0.0)
        return [Member(ks[0], _then(ks[0], first)), Member(ks[1], cls._after(ks[1], second))]

    @classmethod
    def _after(cls, k: Kernel, rest: Iterator[Instr]) -> Iterator[Instr]:
        if cls.told:
            yield await_signal(k, Pipe.MTE3, Pipe.MTE2, 0)
        yield from rest


def _then(k: Kernel, rest: Iterator[Instr]) -> Iterator[Instr]:
    yield from rest
    yield signal(k, 1, Pipe.MTE3, Pipe.MTE2, 0)


def _move(k: Kernel, src: int, dst: int, plus: float) -> Iterator[Instr]:
    tile = k.alloc("UB", 512).region((256,), np.float16)
    gm = [Region.dense("GM", i, 0, (256,), np.dtype(np.float16)) for i in (src, dst)]
    yield k.load(tile, gm[0])
    for a, b in ((Pipe.MTE2, Pipe.V), (Pipe.V, Pipe.MTE3)):
        if a is Pipe.V:
            yield k.vec("adds", tile, tile, scalar=plus)
        yield k.set_flag(a, b, 1)
        yield k.wait_flag(a, b, 1)
    yield k.store(gm[1], tile)


@pytest.mark.parametrize("told", [True, False])
def test_phases_and_workspace_carry_numbers(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    monkeypatch.setattr(launching, "get_kernel", lambda name: _Relay)
    monkeypatch.setattr(_Relay, "told", told)
    args = vector_args(256)
    moved = {0: Traffic(512, 512), 1: Traffic(512, 1536), 2: Traffic(0, 1024)}
    plan = Plan({}, 1, moved, ((0, 1),), workspace=(512,), phases=2)
    x, y = np.arange(256, dtype=np.float16), np.zeros(256, np.float16)
    result = run_tile_level(B2, "Relay", args, plan, [x, y])
    assert np.array_equal(y, x + 1) == told  # without the flag, core 1 reads what is not there yet
    assert result.cycles == time_launch(B2, "Relay", args, plan).cycles
    assert result.cycles == time_launch(B2, "Relay", args, plan, engine="simpy").cycles
    assert result.mixed and len(result.cores) == 3
    slow = result.slowest
    for p in range(len(slow.busy)):
        assert slow.busy[p] + slow.idle[p] + sum(slow.stall[p].values()) == result.cycles
