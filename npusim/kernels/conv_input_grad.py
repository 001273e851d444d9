"""Conv2DBackpropInput: the gradient of a convolution by its input, as a convolution itself.

dX = dY (with stride-1 zeros between its pixels) * W rotated by half a turn, its channels
exchanged. dY stays undilated in L1: load3d fetches the zeros, so a strided gradient runs the full
product, zeros and all. W is the forward FRACTAL_Z: an n tile's blocks lie in L1 as in GM, and
load2d transposes and picks them in rotated order on the way to L0B.

Fused behind it, in fp16 in UB: tensors to add, then ReLU's bit mask (N, C1, H, W, 2), selected by
vsel, which takes a mask of one repeat per instruction. Where only the batch is split, as CANN does
without a tuned tiling, L0B tiles and strips are small and L0C is free once its last strip is in UB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.ir.layout import blocks
from npusim.kernels import epilogue as ep
from npusim.kernels.conv import Conv2D, ConvBody, ConvOutput, conv_plan
from npusim.kernels.conv_tiling import TrainingProblem, conv_estimate, conv_tilings
from npusim.kernels.cube_tiling import exact_splits, share, tile_sizes
from npusim.kernels.lang import Kernel
from npusim.kernels.queues import Alloc, Queue
from npusim.ops import get_operator
from npusim.ops.window import Window as OpWindow
from npusim.program.effects import Window
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, kernel
from npusim.program.region import GM, Region

#: Cycles per 128 elements of the unrolled pair "set mask, vsel". The measured gradients with
#: ReLU take 0.096 cycles per element, the move out of L0C (0.016) included.
SELECT = 10
#: Fractals of an untuned kernel's L0B tile, N × K blocks. Read off recorded times per K step:
#: 1, 2, 4 N blocks of InceptionV3's gradients go with 4, 2, 1 K blocks (12→5 73², 10→10 17²,
#: 24→24 8²: 178, 107 and 46 cycles of MTE1 a step).
UNTUNED_L0B = 4
#: Column blocks of an untuned kernel's strip in UB: of 2 N blocks the work behind the cube is
#: mostly hidden, of 4 and more half of it is not (the same rows).
UNTUNED_STRIP = 2


@dataclass(frozen=True)
class GradSpec(ep.EpilogueSpec):
    """Operands that are added, and the mask's (None without ReLU)."""

    adds: tuple[int, ...] = ()
    mask: int | None = None

    @property
    def strip_bytes(self) -> int:
        """UB bytes per element: result and addends twice, mask bits (rounded up) twice."""
        half = 2 * self.out.itemsize
        return half * (1 + len(self.adds)) + (1 if self.mask is not None else 0)

    @property
    def passes(self) -> int:
        """The move out of L0C, an addition each, the selection."""
        return 1 + len(self.adds) + (self.mask is not None)

    def vector_cycles(self, chip: ChipSpec, elements: float) -> float:
        """The move, and fp16 passes."""
        vec = chip.core.vector
        assert vec.l0c_rate is not None
        lanes = vec.repeat_bytes // 2
        add = vec.costs["binary"].b16 or 2.0
        per_repeat = len(self.adds) * add + (SELECT if self.mask is not None else 0)
        return elements * (4 / vec.l0c_rate + per_repeat / lanes)


@dataclass(frozen=True)
class GradProblem(TrainingProblem):
    """The convolution over the dilated gradient; sizes are dY's own, undilated."""

    def splits(self, cores: int) -> list[tuple[int, int, int]]:
        """Block splits worth trying; M in equal parts, but for the form with additions."""
        even = not (isinstance(self.spec, GradSpec) and self.spec.adds)
        return exact_splits(self.batch, self.m, self.n1, cores, even)

    def untuned_step(self, n0: int, most: int) -> int:
        """As many K blocks as make an L0B tile of `UNTUNED_L0B` fractals with n0 N blocks."""
        return min(most, max(1, UNTUNED_L0B // n0))

    def held_cycles(self, chip: ChipSpec, t: Tiling) -> float:
        """The moves out of L0C, and the work on all strips but a tile's last."""
        rows, vec = min(t["m0"], self.m1) * 256, chip.core.vector
        assert vec.l0c_rate is not None
        last = (t["n0"] - 1) % UNTUNED_STRIP + 1
        work = self.spec.vector_cycles(chip, rows * (t["n0"] - last))
        return work + last * rows * 4 / vec.l0c_rate + t["n0"] * (vec.head + vec.tail)

    def n_tiles(self, n: int, room: int, exact: bool) -> list[int]:
        """N tile sizes: where blocks are not split exactly, the largest power of two in n.

        A window's N that is no power of two itself goes by `UNTUNED_L0B` blocks at most.
        """
        if exact:
            return tile_sizes(n, room)
        most = 16 if self.taps == 1 or n & (n - 1) == 0 else UNTUNED_L0B
        return [n if n <= 3 else min(n & -n, most, 1 << (room.bit_length() - 1))]


@lru_cache(maxsize=256)
def grad_problem(args: KernelArgs) -> GradProblem:
    """The launch as an implicit GEMM: M positions of dX, N = C1, K = Co1·kh·kw."""
    dy, w = args.inputs[0], args.inputs[1]
    assert dy is not None and w is not None
    n, co, h, wd = dy.shape
    _, c, kh, kw = w.shape
    hi, wi = args.outputs[0].shape[2:]
    op = get_operator(args.op_type)
    win = OpWindow.of((hi, wi), (kh, kw), {**op.attrs, **dict(args.attrs)})
    (sh, sw), (top, left) = win.strides, win.begin
    masked = args.op_type.endswith("ReluGradV2")
    fused = tuple(range(2, len(args.inputs)))
    spec = GradSpec(
        None,
        (),
        args.outputs[0].dtype.np,
        0,
        adds=fused[:-1] if masked else fused,
        mask=fused[-1] if masked else None,
    )
    if kh == kw == sh == sw == 1 and (h, wd) == (hi, wi) and not top and not left:
        window = Window(1, 1, 1, 1, 1, 1, 0, 0, h * wd, 1, 1)
        return GradProblem(n, blocks(co), h * wd, 1, c, hi * wi, window, dy.dtype, spec)
    window = Window(kh, kw, 1, 1, 1, 1, kh - 1 - top, kw - 1 - left, h, wd, wi, sh, sw)
    return GradProblem(n, blocks(co), h, wd, c, hi * wi, window, dy.dtype, spec)


@kernel("Conv2DBackpropInput")
class Conv2DBackpropInput(Conv2D):
    """dX on the cube. Inputs: dY, W, tensors to add, ReLU's mask (as the operator has them)."""

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """As Conv2D; results leave through the vector unit, in fp16; no dilation."""
        dy = args.inputs[0]
        assert dy is not None
        if chip.core.fixp is not None:
            return "L0C does not leave through the vector unit"
        if dy.dtype is not DType.FLOAT16:
            return f"gradients in {dy.dtype.value}"
        if any(d != 1 for d in args.get("dilations") or ()):
            return "dilated windows"
        if any(t is None or t.layout is not Layout.NC1HWC0 for t in (dy, *args.outputs)):
            return "needs NC1HWC0 gradients"
        w = args.inputs[1]
        return "" if w is not None and w.layout is Layout.FRACTAL_Z else "needs FRACTAL_Z weights"

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """As Conv2D."""
        return conv_tilings(grad_problem(args), chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """As Conv2D."""
        return conv_estimate(grad_problem(args), chip, tiling)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """As Conv2D, with the fused operands read beside the result."""
        p = grad_problem(args)
        plan = conv_plan(p, args, tiling)
        assert isinstance(p.spec, GradSpec)
        out = plan.traffic[len(args.inputs)].total
        traffic = dict(plan.traffic)
        for i in p.spec.adds:
            traffic[i] = Traffic(out, out)
        if p.spec.mask is not None:
            bits = out // (8 * p.spec.out.itemsize)
            traffic[p.spec.mask] = Traffic(bits, bits)
        return Plan(plan.tiling, plan.block_dim, traffic, plan.classes)

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """See the module's text."""
        p = grad_problem(args)
        return _Body(k, p, tiling, share(p, tiling, block)).run()


class _GradOutput(ep.CubeOutput):
    """Drains L0C tiles through the fused fp16 work."""

    def _allocate(self, strip: int) -> None:
        k, spec = self._k, self._spec
        assert isinstance(spec, GradSpec)
        self._grad = spec
        size = strip * spec.out.itemsize
        self._out = k.queue("UB", size, 2, Pipe.V, Pipe.MTE3)
        self._residuals = {i: k.queue("UB", size, 2, Pipe.MTE2, Pipe.V) for i in spec.adds}
        if spec.mask is not None:
            self._bits: Queue = k.queue("UB", strip // 8, 2, Pipe.MTE2, Pipe.V)

    def release_early(self) -> None:
        """Untuned tilings take a few column blocks at a time."""
        super().release_early()
        if self._grad.passes > 1:
            self._nu = min(self._nu, UNTUNED_STRIP)

    def _strip(self, l0c: Region, n1: int, width: int, tile: ep.TileSpan) -> Iterator[Instr]:
        k, spec = self._k, self._grad
        nu, m16 = l0c.shape[0], tile.m16
        key = (nu, width, tile.rows)
        yield from self._load_fused(nu, n1, tile)
        out = yield from self._out.alloc()
        dx = self._shape(out, spec.out, nu, m16)
        yield k.memo(("copy_l0c", nu, m16), lambda: k.l0c_to_ub(dx, l0c))
        yield from self._in_ub()
        for i, queue in self._residuals.items():
            yield queue.deque()
            other = self._shape(queue.front, spec.out, nu, m16)
            yield k.memo(("add", i, nu, m16), lambda o=other: k.vec("add", dx, dx, o))  # type: ignore[misc]
            yield queue.free()
        if spec.mask is not None:
            yield self._bits.deque()
            bits = self._bits.front.region((nu, m16, 2), np.uint8)
            yield k.memo(
                ("sel", nu, m16),
                lambda: k.vec_by("sel", _masked, dx, dx, bits, dx, per_repeat=SELECT),
            )
            yield self._bits.free()
        yield self._out.enque()
        yield self._out.deque()
        yield k.memo(
            ("store", *key),
            lambda: k.store_pairs(self._view.pieces(k.output(0), dx, n1, tile)),
        )
        yield self._out.free()

    def _load_fused(self, nu: int, n1: int, tile: ep.TileSpan) -> Iterator[Instr]:
        """Tensors to add and mask bits of a strip → UB."""
        k, spec = self._k, self._grad
        key = (nu, tile.rows)
        for operand, queue in self._residuals.items():
            slot = yield from queue.alloc()
            yield k.memo(
                ("residual", operand, *key),
                lambda s=slot, op=operand: self._load_residual(s, op, nu, n1, tile),  # type: ignore[misc]
            )
            yield queue.enque()
        if spec.mask is None:
            return
        slot = yield from self._bits.alloc()
        yield k.memo(("bits", *key), lambda: self._load_bits(slot, nu, n1, tile))
        yield self._bits.enque()

    def _load_bits(self, slot: Alloc, nu: int, n1: int, tile: ep.TileSpan) -> Instr:
        k, view = self._k, self._view
        assert isinstance(view, ConvOutput) and self._grad.mask is not None
        n, c1, h, w = k.operand(self._grad.mask).shape[:4]
        whole = Region.dense(GM, self._grad.mask, 0, (n, c1, h * w, 2), np.dtype(np.uint8))
        src = whole[tile.batch, n1 : n1 + nu, tile.row0 : tile.row0 + tile.rows]
        local = slot.region((nu, tile.m16, 2), np.uint8)
        return k.load(local[:, : tile.rows], src)


def _masked(bits: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x where its bit is set, else zero; two bytes hold the bits of 16 channels."""
    mask = np.unpackbits(bits, axis=-1, bitorder="little")
    return np.where(mask != 0, x, np.zeros((), x.dtype))


class _Body(ConvBody):
    """A block of the gradient."""

    output = _GradOutput

    def _load_weights(self, alloc: Alloc, batch: int, ni: int, c_first: int, c_count: int) -> Instr:
        """Weights of Co1 blocks, n tile ni → (n blocks, taps, Co1, 16, 16) in L1, as in GM."""
        p = self.p
        col0, cols = self._cols(ni)
        lo, co1 = col0 // 16, self.k.input(1).shape[1]
        whole = Region.dense(GM, 1, 0, (p.n1, p.taps, co1, 16, 16), p.dtype.np)
        src = whole[lo : lo + blocks(cols), :, c_first : c_first + c_count]
        return self.k.load(alloc.region(src.shape, p.dtype.np), src)

    def _load_l0b(self, dst: Region, src: Alloc, c1: int, lo: int) -> Instr:
        """K blocks (Co1, taps backwards) from `lo`, each fractal transposed."""
        taps = self.p.taps
        w = src.region((dst.shape[1], taps, c1, 16, 16), dst.dtype)
        pairs = []
        for i in range(dst.shape[0]):
            co, tap = divmod(lo + i, taps)
            pairs.append((dst[i], w[:, taps - 1 - tap, co].permute(0, 2, 1)))
        return self.k.load_l0_pairs(pairs)
