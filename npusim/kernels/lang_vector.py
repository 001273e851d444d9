"""The vector unit in the kernel language: instructions on UB, and when one needs a barrier."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from npusim.chip.spec import ChipSpec
from npusim.kernels import vector_ops
from npusim.program import cost, effects, isa
from npusim.program.isa import Instr, Pipe
from npusim.program.region import Region


class VectorInstructions:
    """What `Kernel` says to the vector pipe.

    Attributes:
        chip: the chip; functional: True at tile level (instructions carry effects).
        issue: scalar cycles per instruction; 0 for the chip's own.
    """

    def __init__(self, chip: ChipSpec, functional: bool, issue: int) -> None:
        self.chip = chip
        self.functional = functional
        self._issue = issue or chip.core.scalar.issue
        self._dirty: list[tuple[int, int]] = []  # UB byte ranges written since the last barrier

    def vec(self, op: str, dst: Region, *srcs: Region, scalar: Any = None) -> Instr:
        """V: one vector instruction on UB, dst = op(srcs…[, scalar]).

        `op` is a name of `vector_ops`. Shapes must broadcast to dst's. Element width of the cost
        is the wider of dst and sources. A dependence on an earlier vector result emits the
        pipe barrier that the hardware needs.
        """
        spec = vector_ops.get(op)
        srcs = tuple(s.broadcast(dst.shape) for s in srcs)
        bits = 8 * max(r.dtype.itemsize for r in (dst, *srcs))
        walked = (dst,) if spec.cost == "transpose" else (dst, *srcs)
        repeats, count = cost.vector_repeats(self.chip, bits, *walked)
        cycles = cost.vector_cycles(self.chip, spec.cost, bits, repeats, count)
        return self._vector(op, spec, cycles, count, dst, srcs, scalar)

    def select_bits(self, dst: Region, mask: Region, src: Region, pair: float) -> Instr:
        """V: dst = src where the mask's bit is set (lowest first), else 0; flat regions.

        One set-mask and select pair of `pair` cycles a repeat: the pair does not repeat.
        """
        bits = 8 * dst.dtype.itemsize
        repeats, _ = cost.vector_repeats(self.chip, bits, dst, src)
        cycles = self.chip.core.vector.head + ceil(repeats * pair)
        spec = vector_ops.get("sel_bits")
        return self._vector("sel_bits", spec, cycles, 1, dst, (mask, src), None)

    def reduce(self, op: str, dst: Region, src: Region, *others: Region) -> Instr:
        """V: dst[…] = sum/max/min of src[…, L], L at most a repeat (vcadd, vcmax, vcmin).

        A repeat gives one result, however short L is; vcgadd … give one per 32 B block.
        """
        spec = vector_ops.get(op)
        bits = 8 * src.dtype.itemsize
        repeats, count = cost.vector_repeats(self.chip, bits, src)
        if spec.cost == "reduce":
            repeats = max(repeats, src.size // src.shape[-1])
            count = max(count, -(-repeats // self.chip.core.vector.max_repeat))
        cycles = cost.vector_cycles(self.chip, spec.cost, bits, repeats, count)
        return self._vector(op, spec, cycles, count, dst, (src, *others), None)

    def vec_by(
        self,
        op: str,
        fn: Callable[..., Any],
        walked: Region,
        dst: Region,
        *srcs: Region,
        per_repeat: float | None = None,
    ) -> Instr:
        """V: dst = fn(*srcs) at the cost of instruction `op` walking the region `walked`.

        For what is not elementwise: accumulation into a held register row, bit masks.
        `per_repeat`: cycles that replace the instruction's own, where the kernel knows better.
        """
        spec = vector_ops.VectorSpec(vector_ops.get(op).cost, fn)
        bits = 8 * walked.dtype.itemsize
        repeats, count = cost.vector_repeats(self.chip, bits, walked)
        cycles = cost.vector_cycles(self.chip, spec.cost, bits, repeats, count)
        if per_repeat is not None:
            cycles = ceil(repeats * per_repeat) + self.chip.core.vector.head
        return self._vector(op, spec, cycles, count, dst, srcs, None)

    def vec_taking(self, op: str, cycles: int, dst: Region, *srcs: Region) -> Instr:
        """V: dst = op(srcs…) that keeps the pipe for `cycles`, where the kernel knows them."""
        srcs = tuple(s.broadcast(dst.shape) for s in srcs)
        return self._vector(op, vector_ops.get(op), cycles, 1, dst, srcs, None)

    def barrier(self) -> None:
        """pipe_barrier(V): the next vector instruction waits for all before it."""
        self._dirty.append((0, self.chip.core.ub.size))

    def _vector(
        self,
        op: str,
        spec: vector_ops.VectorSpec,
        cycles: int,
        count: int,
        dst: Region,
        srcs: tuple[Region, ...],
        scalar: Any,
    ) -> Instr:
        serial = self._depends(dst, srcs)
        self._touch(dst)
        effect = None
        if self.functional:
            effect = effects.VectorOp(vector_ops.bind(spec, scalar, dst), dst, srcs)
        issue = self._issue * max(1, count)
        tail = self.chip.core.vector.tail
        return Instr(isa.Kind.LOCAL, Pipe.V, op, issue, cycles, tail, effect, serial)

    def _depends(self, dst: Region, srcs: tuple[Region, ...]) -> bool:
        """True when an operand was written since the last barrier (and forget what was)."""
        for r in (dst, *srcs):
            lo, hi = r.offset, r.end()
            if any(lo < e and s < hi for s, e in self._dirty):
                self._dirty.clear()
                return True
        return False

    def _touch(self, dst: Region) -> None:
        if len(self._dirty) > 64:
            self._dirty = self._dirty[-32:]
        self._dirty.append((dst.offset, dst.end()))
