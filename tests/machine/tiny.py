"""Hand-written programs on one core: run them on either engine, or step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import simpy

from npusim.chip import load_chip
from npusim.chip.spec import ChipSpec
from npusim.ir import DType
from npusim.kernels.lang import Kernel, TileKernel
from npusim.machine import launch as launching
from npusim.machine.core import CoreModel, SharedMemory, TileMemory
from npusim.machine.gm import GmState
from npusim.machine.scoreboard import Scoreboard
from npusim.machine.stats import CoreStats
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, Tiling
from npusim.program.region import Region

Program = Callable[[Kernel], Iterator[Instr]]

CHIPS = {n: load_chip(n) for n in ("toy", "ascend910a", "ascend910b2")}
COLD = GmState(((0, 1.0), (1, 1.0)))
HOT = GmState(())


def vector_args(n: int) -> KernelArgs:
    """A launch of one input and one output of n fp16 elements."""
    spec = OperandSpec((n,), DType.FLOAT16)
    return KernelArgs("Tiny", (spec,), (spec,))


class Stepped:
    """A program on a SimPy core with real bytes, advanced cycle by cycle.

    Attributes:
        x, y: input and output; k: the program's context.
    """

    def __init__(self, chip: ChipSpec, program: Program, n: int = 256, gm: GmState = COLD) -> None:
        self.env = simpy.Environment()
        self.x = np.arange(1, n + 1, dtype=np.float32).astype(np.float16)
        self.y = np.zeros(n, np.float16)
        self._memory = TileMemory(chip, [self.x.view(np.uint8), self.y.view(np.uint8)])
        self.k = Kernel(chip, vector_args(n), 0, True)
        shared = SharedMemory(self.env, chip)
        self.core = CoreModel(self.env, chip, shared, program(self.k), gm, 1, self._memory)

    def view(self, region: Region) -> np.ndarray:
        """The bytes of a region now."""
        return self._memory.view(region)

    def before(self, cycle: int) -> Stepped:
        """Everything up to, but not at, `cycle` has happened."""
        self.env.run(until=cycle)
        return self

    def at(self, cycle: int) -> Stepped:
        """Everything at `cycle` has happened."""
        return self.before(cycle + 1)


def run_alone(
    chip: ChipSpec, program: Program, engine: str = "simpy", gm: GmState = COLD, n: int = 256
) -> CoreStats:
    """One core runs the program; its accounts are checked."""
    (stats,) = run_classes(chip, [(program, 1)], engine, gm, n=n)
    return stats


def run_classes(
    chip: ChipSpec,
    classes: Sequence[tuple[Program, int]],
    engine: str,
    gm: GmState,
    fold: bool = True,
    n: int = 256,
) -> list[CoreStats]:
    """Classes of (program, weight) run together on "simpy" or "fast"."""
    contexts = [Kernel(chip, vector_args(n), i, False) for i in range(len(classes))]
    if engine == "fast":
        board = Scoreboard(chip, gm, fold)
        for k, (program, weight) in zip(contexts, classes, strict=True):
            board.add_core(k, program(k), weight)
        stats = board.run("Tiny")
    else:
        env = simpy.Environment()
        shared = SharedMemory(env, chip)
        models = [
            CoreModel(env, chip, shared, program(k), gm, weight)
            for k, (program, weight) in zip(contexts, classes, strict=True)
        ]
        env.run()
        stats = [m.stats for m in models]
    for s in stats:
        s.check("Tiny")
    return stats


def as_kernel(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    """Make `time_launch` and `run_tile_level` launch `program`, whatever the name."""

    class Tiny(TileKernel):
        @staticmethod
        def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
            return program(k)

    monkeypatch.setattr(launching, "get_kernel", lambda name: Tiny)


def one_block(traffic: dict[int, Any] | None = None) -> Plan:
    """A plan of one block."""
    return Plan({}, 1, traffic or {}, ((0, 1),))
