"""The kernel language: what a kernel body sees of the AI Core it runs on.

A body is a Python generator; each yielded `Instr` goes from the scalar unit into the queue of its
pipe. Pipes run side by side and meet only through flags, which the queues (`Queue`, after Ascend
C's TQue) emit:

    def body(k, args, tiling, block):
        xq = k.queue("UB", 4096, slots=2, src=Pipe.MTE2, dst=Pipe.V)
        yq = k.queue("UB", 4096, slots=2, src=Pipe.V, dst=Pipe.MTE3)
        x, y = k.input(0), k.output(0)
        for i in k.loop(n_tiles):
            tile = yield from xq.alloc()              # MTE2 waits until V has freed the slot
            src = tile.region((n,), np.float16)
            yield k.load(src, x[i * n : (i + 1) * n])
            yield xq.enque()                          # MTE2 tells V
            yield xq.deque()                          # V waits
            out = yield from yq.alloc()
            dst = out.region((n,), np.float16)
            yield k.vec("relu", dst, src)
            yield xq.free()                           # V tells MTE2
            yield yq.enque()
            yield yq.deque()
            yield k.store(y[i * n : (i + 1) * n], dst)
            yield yq.free()

A loop written with `k.loop` promises that all iterations but the last issue instructions of the
same costs in the same order (addresses may differ); the machine may then skip repetitions that
leave the core in the same state, which never changes a cycle (a test holds that).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from math import ceil

from npusim.chip.spec import ChipSpec, Fixp
from npusim.errors import BufferFullError, KernelError
from npusim.kernels.lang_vector import VectorInstructions
from npusim.kernels.queues import SHORT_LOOP, Alloc, Loop, Queue
from npusim.program import cost, effects, isa
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, KernelDef, Tiling
from npusim.program.region import GM, Region

ALIGN = 32  #: on-chip allocations are multiples of one 32 B block
FRACTAL = 512  #: bytes of a fractal: 16 rows of 32 B


class Kernel(VectorInstructions):
    """One core's view of a kernel launch: buffers, operands, instructions.

    Attributes:
        chip: the chip; args: the launch's operands and attributes; block: block index.
        functional: True at tile level (instructions carry effects).
        issue: scalar cycles per instruction, where a library's code around each takes longer.
        queues: the queues made so far.
        loops: the loops the body is in, outermost first; mark: True when one just advanced.
    """

    def __init__(
        self, chip: ChipSpec, args: KernelArgs, block: int, functional: bool, issue: int = 0
    ) -> None:
        super().__init__(chip, functional, issue)
        self.args = args
        self.block = block
        self.loops: list[Loop] = []
        self.queues: list[Queue] = []
        self.mark = False
        core = chip.core
        self._capacity = {
            "UB": core.ub.size,
            "L1": core.l1.size,
            "L0A": core.l0a.size,
            "L0B": core.l0b.size,
            "L0C": core.l0c.size,
        }
        self._used = dict.fromkeys(self._capacity, 0)
        self._flags = 0
        self._memo: dict[tuple[object, ...], Instr] = {}

    # -- structure -------------------------------------------------------------------------

    def loop(self, count: int) -> Iterator[int]:
        """Iterate 0 … count-1; see the module's text for what a body promises."""
        if count < SHORT_LOOP:
            yield from range(count)
            return
        state = Loop(count, sys._getframe(1).f_lineno)
        self.loops.append(state)
        while state.index < count:
            self.mark = state.fresh = True
            yield state.index
            state.index += 1
        self.loops.pop()

    def alloc(self, space: str, nbytes: int) -> Alloc:
        """A piece of a buffer, 32 B aligned.

        Raises:
            BufferFullError: names the buffer, the bytes asked and the bytes free.
        """
        size = -(-nbytes // ALIGN) * ALIGN
        free = self._capacity[space] - self._used[space]
        if size > free:
            raise BufferFullError(
                f"{space} of {self.chip.name}: {size} B asked, {free} B free "
                f"of {self._capacity[space]} B",
                "allocations within the buffer",
                f"tile smaller, or raise core.{space.lower()}.size",
            )
        offset = self._used[space]
        self._used[space] += size
        return Alloc(space, offset, size)

    def queue(
        self,
        space: str,
        nbytes: int,
        slots: int,
        src: Pipe,
        dst: Pipe,
        partner: tuple[str, int] | None = None,
    ) -> Queue:
        """A queue of `slots` pieces of `nbytes` between two pipes.

        `partner` = (space, nbytes) adds a second buffer per slot under the same flags.
        """
        self.queues.append(Queue(self, space, nbytes, slots, src, dst, partner))
        return self.queues[-1]

    def flag_id(self) -> int:
        """A fresh event id."""
        self._flags += 1
        return self._flags

    def input(self, i: int) -> Region:
        """The whole of input i in GM, in its storage shape."""
        return self.operand(i)

    def output(self, i: int) -> Region:
        """The whole of output i in GM, in its storage shape."""
        return self.operand(len(self.args.inputs) + i)

    def operand(self, index: int) -> Region:
        """The whole of a GM operand (inputs first, then outputs)."""
        spec = self.args.operands[index]
        return Region.dense(GM, index, 0, spec.storage_shape, spec.dtype.np)

    # -- flags -----------------------------------------------------------------------------

    def set_flag(self, src: Pipe, dst: Pipe, event: int) -> Instr:
        """set_flag(src, dst, event)."""
        key = (isa.Kind.SET, src, dst, event)
        found = self._memo.get(key)
        if found is None:
            found = isa.set_flag(src, dst, event, self._issue, self.chip.core.scalar.flag)
            self._memo[key] = found
        return found

    def wait_flag(self, src: Pipe, dst: Pipe, event: int) -> Instr:
        """wait_flag(src, dst, event)."""
        key = (isa.Kind.WAIT, src, dst, event)
        found = self._memo.get(key)
        if found is None:
            found = isa.wait_flag(src, dst, event, self._issue, self.chip.core.scalar.flag)
            self._memo[key] = found
        return found

    def memo(self, key: tuple[object, ...], build: Callable[[], Instr]) -> Instr:
        """The instruction that `build` makes, built once per key when nothing is computed.

        Two instructions with one key must differ in addresses only: without effects they are the
        same instruction, and building regions is most of what a kernel body costs to run.
        """
        if self.functional:
            return build()
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = build()
        return found

    # -- GM transfers ----------------------------------------------------------------------

    def load(self, dst: Region, src: Region, zero: Region | None = None) -> Instr:
        """MTE2: GM → L1 or UB, one (strided) DataCopy."""
        return self.load_pairs([(dst, src)], zero)

    def load_pairs(
        self,
        pairs: list[tuple[Region, Region]],
        zero: Region | None = None,
        pieces: int | None = None,
    ) -> Instr:
        """MTE2: several GM pieces of one operand into one tile, as one command.

        `zero` (a region covering the tile) is zero-filled first, as padding of ragged tiles.
        `pieces` overrides the number of bursts (ND2NZ on the fly reads whole GM rows).
        """
        mte2 = self.chip.core.mte2
        to_ub = pairs[0][0].space == "UB"
        nbytes = sum(d.nbytes for d, _ in pairs)
        if pieces is None:
            pieces = sum(cost.bursts(d, s) for d, s in pairs)
        rate = mte2.ub_rate if to_ub else mte2.rate
        cap = cost.dma_cap(nbytes, pieces, rate, mte2.burst, mte2.min_burst)
        self._check_align(pairs[0][0])
        effect = effects.Copy(tuple(pairs), zero) if self.functional else None
        return isa.gm_transfer(
            Pipe.MTE2,
            "copy_gm" if to_ub else isa.LOAD_L1,
            self._issue,
            mte2.head,
            nbytes,
            cap,
            pairs[0][1].operand,
            False,
            effect,
        )

    def store(self, dst: Region, src: Region, atomic: bool = False) -> Instr:
        """MTE3: UB → GM (atomic: fp32/fp16 add)."""
        if atomic:
            mte3 = self.chip.core.mte3
            cap = cost.dma_cap(
                dst.nbytes, cost.bursts(dst, src), mte3.rate, mte3.burst, mte3.min_burst
            )
            effect = effects.AtomicAdd(dst, src) if self.functional else None
            return isa.gm_transfer(
                Pipe.MTE3,
                "atomic_add",
                self._issue,
                mte3.head,
                dst.nbytes,
                cap,
                dst.operand,
                True,
                effect,
            )
        return self.store_pairs([(dst, src)])

    def store_pairs(self, pairs: list[tuple[Region, Region]], pieces: int | None = None) -> Instr:
        """MTE3: several UB pieces into one operand, as one command (`pieces`: as in a load)."""
        mte3 = self.chip.core.mte3
        nbytes = sum(d.nbytes for d, _ in pairs)
        if pieces is None:
            pieces = sum(cost.bursts(d, s) for d, s in pairs)
        cap = cost.dma_cap(nbytes, pieces, mte3.rate, mte3.burst, mte3.min_burst)
        self._check_align(pairs[0][1])
        effect = effects.Copy(tuple(pairs)) if self.functional else None
        return isa.gm_transfer(
            Pipe.MTE3,
            "copy_ub",
            self._issue,
            mte3.head,
            nbytes,
            cap,
            pairs[0][0].operand,
            True,
            effect,
        )

    def ub_to_l1(self, dst: Region, src: Region, zero: Region | None = None) -> Instr:
        """MTE3: UB → L1, where the core has that way; `zero` as for `load_pairs`.

        Raises:
            KernelError: the chip has no such path.
        """
        mte3 = self.chip.core.mte3
        if mte3.l1_rate is None:
            raise KernelError(
                f"UB → L1 on {self.chip.name}", "chips with core.mte3.l1_rate", "go through GM"
            )
        cycles = mte3.head + ceil(dst.nbytes / mte3.l1_rate)
        effect = effects.Copy(((dst, src),), zero) if self.functional else None
        tail = self.chip.core.mte1.tail
        return Instr(isa.Kind.LOCAL, Pipe.MTE3, "copy_l1", self._issue, cycles, tail, effect)

    def fixpipe(
        self,
        pairs: list[tuple[Region, Region]],
        pieces: int,
        biases: Sequence[Region] = (),
        relu: bool = False,
        atomic: bool = False,
        quant: effects.Quantised | None = None,
        scales: Sequence[Region] = (),
    ) -> Instr:
        """FIXP: L0C → GM with cast, bias (regions in L1, one per pair), ReLU and NZ2ND on the way.

        `pieces` is the number of contiguous GM bursts (whole rows after NZ2ND); `atomic` adds;
        `quant` takes int32 sums to another type, with `scales` as biases are given.

        Raises:
            KernelError: the chip has no FIXP.
        """
        fixp = self._fixp("l0c_to_ub")
        nbytes = sum(d.nbytes for d, _ in pairs)
        rate = min(fixp.rate, fixp.elements * pairs[0][0].dtype.itemsize)
        cap = cost.dma_cap(nbytes, pieces, rate, fixp.burst, ALIGN)
        effect = None
        if self.functional:
            effect = effects.Fixpipe(
                tuple(pairs), tuple(biases), relu, atomic, quant, tuple(scales)
            )
        return isa.gm_transfer(
            Pipe.FIXP,
            "fixpipe",
            self._issue,
            fixp.head,
            nbytes,
            cap,
            pairs[0][0].operand,
            True,
            effect,
        )

    def _fixp(self, instead: str) -> Fixp:
        """The chip's FIXP, or an error that says what to use in its place."""
        fixp = self.chip.core.fixp
        if fixp is None:
            raise KernelError(
                f"fixpipe on {self.chip.name}",
                "chips with core.fixp",
                f"leave L0C through the vector pipe ({instead})",
            )
        return fixp

    def fixpipe_l1(
        self, dst: Region, src: Region, biases: Sequence[Region] = (), relu: bool = False
    ) -> Instr:
        """FIXP: L0C → L1 with cast, bias (a region in L1, of src's shape) and ReLU on the way.

        Raises:
            KernelError: the chip has no FIXP.
        """
        fixp = self._fixp("l0c_to_ub, ub_to_l1")
        cycles = fixp.head + ceil(dst.nbytes / fixp.l1_rate)
        effect = effects.Fixpipe(((dst, src),), biases, relu) if self.functional else None
        return Instr(
            isa.Kind.LOCAL, Pipe.FIXP, "fixpipe_l1", self._issue, cycles, fixp.tail, effect
        )

    def stall(self, pipe: Pipe, cycles: int) -> Instr:
        """`pipe` stands still for `cycles`, as its buffer's port is taken; nothing is issued."""
        return Instr(isa.Kind.LOCAL, pipe, "stall", 0, cycles)

    # -- L1 → L0, cube, L0C → UB --------------------------------------------------------------

    def load_l0(self, dst: Region, src: Region) -> Instr:
        """MTE1 load2d: L1 → L0A or L0B, whole fractals (transposing ones included)."""
        return self.load_l0_pairs([(dst, src)])

    def load_l0_pairs(self, pairs: list[tuple[Region, Region]]) -> Instr:
        """MTE1 load2d of several (L0, L1) pieces, as one command."""
        mte1 = self.chip.core.mte1
        rate = mte1.l0a_rate if pairs[0][0].space == "L0A" else mte1.l0b_rate
        cycles = cost.fractal_load_cycles(sum(d.nbytes for d, _ in pairs), rate, mte1.head)
        effect = effects.Copy(tuple(pairs)) if self.functional else None
        return Instr(isa.Kind.LOCAL, Pipe.MTE1, "load2d", self._issue, cycles, mte1.tail, effect)

    def load3d(
        self,
        dst: Region,
        src: Region,
        window: effects.Window,
        first: int,
        rows: int,
        k_first: int,
        top: int,
        per_fractal: float | None = None,
        padding: float = 0.0,
    ) -> Instr:
        """MTE1 load3d: img2col from L1 (C1, rows, W, C0) into L0 or UB; see `effects.Load3d`.

        `per_fractal`: cycles that replace `core.mte1.load3d_cycles` (into UB its port decides).
        """
        fractals = dst.shape[0] * dst.shape[1]
        cycles = cost.load3d_cycles(
            self.chip, fractals, window.stride_w, dst.dtype.itemsize, per_fractal
        )
        effect = None
        if self.functional:
            effect = effects.Load3d(dst, src, window, first, rows, k_first, top, padding)
        issue = self.chip.core.scalar.load3d_interval
        tail = self.chip.core.mte1.tail
        return Instr(isa.Kind.LOCAL, Pipe.MTE1, "load3d", issue, cycles, tail, effect)

    def mmad(self, c: Region, a: Region, b: Region, accumulate: bool) -> Instr:
        """M: C (N1, M1, 16, 16) (+)= A (M1, K1, 16, K0) · B (K1, N1, 16, K0)."""
        m1, k1, _, k0 = a.shape
        n1 = b.shape[1]
        cycles = cost.mmad_cycles(self.chip, m1, k1 * k0, n1, a.dtype.name)
        effect = effects.Mmad(c, a, b, accumulate) if self.functional else None
        tail = self.chip.core.cube.tail
        return Instr(isa.Kind.LOCAL, Pipe.M, "mmad", self._issue, cycles, tail, effect)

    def l0c_to_ub(self, dst: Region, src: Region) -> Instr:
        """V: L0C → UB with conversion to dst's type (first-generation chips).

        Raises:
            KernelError: the chip has no such path.
        """
        cycles = self._l0c_cycles("L0C → UB", src.nbytes, "use fixpipe")
        effect = effects.Copy(((dst, src),)) if self.functional else None
        self._touch(dst)
        tail = self.chip.core.vector.tail
        return Instr(isa.Kind.LOCAL, Pipe.V, "copy_l0c", self._issue, cycles, tail, effect)

    def ub_to_l0c(self, dst: Region, src: Region) -> Instr:
        """V: UB → L0C (a bias that the cube sums on), on chips with the way back.

        Raises:
            KernelError: the chip has no such path.
        """
        cycles = self._l0c_cycles("UB → L0C", dst.nbytes, "add in FIXP")
        effect = effects.Copy(((dst, src),)) if self.functional else None
        tail = self.chip.core.vector.tail
        return Instr(isa.Kind.LOCAL, Pipe.V, "fill_l0c", self._issue, cycles, tail, effect)

    def _l0c_cycles(self, way: str, nbytes: int, instead: str) -> int:
        """Cycles of the vector unit to move `nbytes` between L0C and UB."""
        vec = self.chip.core.vector
        if vec.l0c_rate is None:
            raise KernelError(
                f"{way} on {self.chip.name}", "chips with core.vector.l0c_rate", instead
            )
        return vec.head + -(-nbytes // int(vec.l0c_rate))

    def _check_align(self, region: Region) -> None:
        if region.offset % ALIGN:
            raise KernelError(
                f"DMA at byte {region.offset} of {region.space}",
                f"offsets that are multiples of {ALIGN} B",
                "start the tile on a 32 B block",
            )


def fits(chip: ChipSpec, args: KernelArgs, *builds: Callable[[Kernel], object]) -> bool:
    """Whether each of `builds` finds room for what it allocates, on a core of its own.

    For tilings of kernels whose programs allocate everything at their beginning: what a tiling
    needs is then said once, by the program itself.
    """
    try:
        for build in builds:
            build(Kernel(chip, args, 0, False))
    except BufferFullError:
        return False
    return True


class TileKernel(KernelDef):
    """Base of the kernels written in this language."""

    @classmethod
    def launch(
        cls, args: KernelArgs, chip: ChipSpec, tiling: Tiling, block: int, functional: bool
    ) -> tuple[Kernel, Iterator[Instr]]:
        """The context and the instruction stream of one block."""
        k = Kernel(chip, args, block, functional)
        return k, cls.body(k, args, tiling, block)
