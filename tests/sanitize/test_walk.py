"""Races of random programs against all pairs of instructions and all paths between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from handwritten import B2, Tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npusim.kernels.lang import Kernel
from npusim.program import isa
from npusim.program.access import Access, Mode
from npusim.program.isa import Instr, Kind, Pipe
from npusim.program.region import Region
from npusim.sanitize import FindingKind

RACES = {FindingKind.RAW, FindingKind.WAR, FindingKind.WAW}
PIPES = (Pipe.MTE2, Pipe.V, Pipe.MTE3)


@dataclass
class Touch:
    """An effect that only touches."""

    touched: list[Access]

    def accesses(self) -> list[Access]:
        """As it was made."""
        return self.touched

    def read(self, memory: isa.CoreMemory) -> None:
        """Nothing."""

    def write(self, memory: isa.CoreMemory, values: None) -> None:
        """All destinations become 1."""
        for region, mode in self.touched:
            if mode is not Mode.READ:
                memory.view(region)[...] = 1


def random_program(seed: int) -> list[Instr]:
    """Instructions of three pipes that touch strided pieces of UB, and pairs of flags."""
    rng = Random(seed)
    out: list[Instr] = []
    for event in range(1, rng.randint(3, 14)):
        a, b = rng.choice(PIPES), rng.choice(PIPES)
        if rng.random() < 0.4 and a != b:
            out += [isa.set_flag(a, b, event, 1, 1), isa.wait_flag(a, b, event, 1, 1)]
            continue
        region = Region(
            "UB", -1, 32 * rng.randint(0, 2) + rng.choice([0, 4, 8]), (rng.randint(1, 4), 4),
            (rng.choice([8, 16]), 1), np.dtype(np.int8),
        )  # fmt: skip
        ins = Instr(Kind.LOCAL, a, "touch", 1, 4)
        ins.effect = Touch([Access(region, rng.choice([Mode.READ, Mode.WRITE]))])
        out.append(ins)
    return out


def bytes_of(r: Region) -> set[int]:
    """Every byte of a two-dimensional region of bytes."""
    (m, n), (s, _) = r.shape, r.strides
    return {r.offset + i * s + j for i in range(m) for j in range(n)}


def brute_force(program: list[Instr]) -> set[tuple[int, int]]:
    """Pairs of instructions that touch common bytes with no path between them."""
    n = len(program)
    after = np.eye(n, dtype=bool)
    for i in range(n):
        for j in range(i + 1, n):
            a, b = program[i], program[j]
            flags = a.kind == Kind.SET and b.kind == Kind.WAIT and a.flag == b.flag
            after[i, j] = a.pipe == b.pipe or flags
    for k in range(n):
        after |= np.outer(after[:, k], after[k])
    found = set()
    for i in range(n):
        for j in range(i + 1, n):
            x, y = program[i].effect, program[j].effect
            if x is None or y is None or after[i, j]:
                continue
            (r, m), (s, o) = x.accesses()[0], y.accesses()[0]
            if (m, o) != (Mode.READ, Mode.READ) and bytes_of(r) & bytes_of(s):
                found.add((i, j))
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_races_are_those_of_all_pairs(seed: int) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield from random_program(seed)

    with pytest.MonkeyPatch.context() as patch:
        found = [f for f in Tiny().findings(patch, program) if f.kind in RACES]
    every = brute_force(random_program(seed))
    named = {(f.first.index, f.second.index) for f in found if f.first and f.second}
    assert named <= every  # the last access of a pipe stands for those before it
    assert bool(named) == bool(every)
    last = {j for _, j in every}
    assert {j for _, j in named} <= last


def test_the_order_of_cores_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores that wait for each other in turns: each is walked as far as its flags allow."""
    from npusim.kernels.cross_core import await_signal, signal

    def core(mine: int) -> object:
        def program(k: Kernel) -> Iterator[Instr]:
            for i in range(30):
                if mine or i:
                    yield await_signal(k, Pipe.MTE3, Pipe.MTE2, mine)
                yield Instr(Kind.LOCAL, Pipe.MTE2, "work", 1, 4)
                yield k.set_flag(Pipe.MTE2, Pipe.MTE3, 1)
                yield k.wait_flag(Pipe.MTE2, Pipe.MTE3, 1)
                if not mine or i < 29:
                    yield signal(k, 1 - mine, Pipe.MTE3, Pipe.MTE2, 1 - mine)

        return program

    assert Tiny(chip=B2).findings(monkeypatch, core(0), core(1)) == []  # type: ignore[arg-type]
    assert Tiny(chip=B2).findings(monkeypatch, core(1), core(0)) != []  # numbers are wrong there
