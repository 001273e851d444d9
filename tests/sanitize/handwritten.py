"""Little kernels for the sanitizer: a program a block, launched as if it were registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from npusim.chip import load_chip
from npusim.chip.spec import ChipSpec
from npusim.ir import DType
from npusim.kernels.lang import Kernel, TileKernel
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Member, OperandSpec, Plan
from npusim.program.region import GM, Region
from npusim.sanitize import Finding, kernel_level, sanitize_launch

Program = Callable[[Kernel], Iterator[Instr]]
TOY, B2 = load_chip("toy"), load_chip("ascend910b2")
F16 = np.dtype(np.float16)
N = 256  #: elements of input and output


@dataclass(frozen=True)
class Tiny:
    """How a little kernel is launched: cores of a block, blocks, phases, workspace."""

    chip: ChipSpec = TOY
    blocks: int = 1
    phases: int = 1
    workspace: tuple[int, ...] = ()
    aliases: tuple[tuple[int, tuple[int, int]], ...] = ()

    def findings(
        self, monkeypatch: pytest.MonkeyPatch, *programs: Program, n: int = N
    ) -> list[Finding]:
        """What the sanitizer says about a kernel with one program per core of a block.

        With several phases: one program per phase instead.
        """
        phases = self.phases

        class Handwritten(TileKernel):
            @classmethod
            def members(
                cls, args: KernelArgs, chip: ChipSpec, plan: Plan, block: int, phase: int,
                functional: bool,
            ) -> list[Member]:  # fmt: skip
                mine = [programs[phase]] if phases > 1 else programs
                ks = [Kernel(chip, args, block, functional) for _ in mine]
                return [Member(k, program(k)) for k, program in zip(ks, mine, strict=True)]

        monkeypatch.setattr(kernel_level, "get_kernel", lambda name: Handwritten)
        x = OperandSpec((n,), DType.FLOAT16)
        plan = Plan({}, self.blocks, {}, ((0, self.blocks),), self.workspace, phases)
        args = KernelArgs("Tiny", (x,), (x,))
        return sanitize_launch(self.chip, "Handwritten", args, plan, dict(self.aliases))


def gm(operand: int, first: int = 0, n: int = N) -> Region:
    """Elements of a GM operand."""
    return Region.dense(GM, operand, 2 * first, (n,), F16)


def ub(offset: int, n: int = N) -> Region:
    """Elements in UB from a byte on."""
    return Region.dense("UB", -1, offset, (n,), F16)


def sync(k: Kernel, *pipes: Pipe, event: int = 1) -> Iterator[Instr]:
    """Each pipe waits for the one before it."""
    for a, b in pairwise(pipes):
        yield k.set_flag(a, b, event)
        yield k.wait_flag(a, b, event)


def relu(k: Kernel) -> Iterator[Instr]:
    """Nothing wrong with it: y = relu(x)."""
    yield k.load(ub(0), gm(0))
    yield from sync(k, Pipe.MTE2, Pipe.V)
    yield k.vec("relu", ub(512), ub(0))
    yield from sync(k, Pipe.V, Pipe.MTE3)
    yield k.store(gm(1), ub(512))
