"""Vector passes as TBE's automatic schedule emits them.

A pass over a run of elements is one instruction over its whole repeats and one over the tail that
fills no repeat; a pipe barrier stands after each. On runs of a few repeats these fixed cycles,
about 20 an instruction, are most of the time: recorded times of BinaryCrossEntropy, LpNorm and
InstanceNorm on the 310 follow from the number of instructions of their sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Alloc
from npusim.program.isa import Instr
from npusim.program.region import Region

F32 = np.dtype(np.float32)
#: Cycles of 64 lanes through a compare into the mask register and a select by it: neither
#: instruction repeats. What is left of vec_ratio in LpNorm with p = 0 on the 310 after its other
#: passes, at 2.13 cycles each.
COMPARE_SELECT = 7.0


class Passes:
    """Emits passes over flat runs, and sums of them."""

    def __init__(self, k: Kernel) -> None:
        self.k = k

    def lanes(self, *regions: Region) -> int:
        """Elements of a repeat: set by the widest operand."""
        return self.k.chip.core.vector.repeat_bytes // max(r.dtype.itemsize for r in regions)

    def __call__(self, op: str, dst: Region, *srcs: Region, scalar: Any = None) -> Iterator[Instr]:
        """dst = op(srcs…[, scalar]) over flat runs; a source of one element is broadcast."""
        for lo, hi in _cuts(dst.shape[0], self.lanes(dst, *srcs)):
            parts = [s if s.shape[0] == 1 else s[lo:hi] for s in srcs]
            yield self._memo(
                (op, hi - lo, dst.dtype, scalar, *(s.dtype for s in srcs)),
                lambda d=dst[lo:hi], p=parts: self.k.vec(op, d, *p, scalar=scalar),
            )

    def square(self, dst: Region, x: Region) -> Iterator[Instr]:
        """dst = x·x, at the cost of a unary pass: one tensor is read, so banks do not conflict."""
        for lo, hi in _cuts(dst.shape[0], self.lanes(dst, x)):
            yield self._memo(
                ("square", hi - lo, dst.dtype),
                lambda d=dst[lo:hi], s=x[lo:hi]: self.k.vec_by("muls", np.square, d, d, s),
            )

    def select(
        self, fn: Any, name: object, dst: Region, *srcs: Region, cost: float = COMPARE_SELECT
    ) -> Iterator[Instr]:
        """dst = fn(*srcs), a compare and a select of full tensors; `cost` cycles of 64 lanes."""
        for lo, hi in _cuts(dst.shape[0], self.lanes(dst)):
            parts = [s if s.shape[0] == 1 else s[lo:hi] for s in srcs]
            yield self._memo(
                ("select", name, hi - lo, len(srcs)),
                lambda d=dst[lo:hi], p=parts: self.k.vec_by("sel", fn, d, d, *p, per_repeat=cost),
            )

    def sum(self, dst: Region, x: Region, partial: Alloc, op: str = "cadd") -> Iterator[Instr]:
        """dst (one fp32 element) = Σ of a run, by vcadd; `partial`: see `partials`.

        A run of fp16 is summed in fp16 along repeats, then in fp32. `op` cmax, cmin: the extreme.
        """
        source, size, level = x, x.shape[0], 0
        half = partial.nbytes // 8 * 4
        while size > 1 or level == 0:
            lanes = self.lanes(source)
            count = -(-size // lanes)
            last = count == 1 and source.dtype == F32
            place = half if level % 2 == 0 else 0
            out = dst if last else partial.region((count,), source.dtype, place)
            done = 0
            for lo, hi in _cuts(size, lanes):
                rows, width = ((hi - lo) // lanes, lanes) if hi - lo >= lanes else (1, hi - lo)
                src = source[lo:hi].split(0, width)
                yield self._memo(
                    (op, rows, width, source.dtype),
                    lambda d=out[done : done + rows], s=src: self.k.reduce(op, d, s),
                )
                done += rows
            if source.dtype != F32:
                wide = dst if count == 1 else partial.region((count,), F32, half - place)
                yield from self("conv", wide, out)
                out = wide
                level += 1
            source, size, level = out, count, level + 1

    def _memo(self, key: tuple[object, ...], build: Any) -> Instr:
        def with_barrier() -> Instr:
            self.k.barrier()
            instr: Instr = build()
            return instr

        return self.k.memo(("pass", *key), with_barrier)


def partials(elements: int) -> int:
    """UB bytes of the partial sums of a run of fp32 elements: two levels beside each other."""
    return 8 * (-(-elements // 64) + 8)


def _cuts(n: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Whole repeats, then the tail."""
    body = n // lanes * lanes
    if body:
        yield 0, body
    if body < n:
        yield body, n
