"""Averages on the cube: AvgPool3DD, and AvgPoolGradVm, one (n, c1) slice of 16 channels at a time.

Both are depthwise convolutions with a 16 × 16 matrix a tap (an average uses its diagonal): img2col
of the slice's lines from L1 to L0A, one Mmad over the taps, L0C through the vector unit to UB as
fp16, to GM. The planes of a volume that an output sees are the channel blocks of its img2col.

The gradient multiplies dy by the means in UB, and puts the product to L1; img2col walks it with the
zeros that the forward stride leaves between its pixels, and the filter from its end. The gradient
of a mean over the whole image needs no filter and no cube: one value goes everywhere.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.bands import Span, reach, spans, window_of
from npusim.kernels.grid import deal
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import F16, F32
from npusim.ops.window import WINDOW_ATTRS, Window
from npusim.program import effects, isa
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel
from npusim.program.region import GM, Region

C0 = 16
FRACTAL = C0 * C0 * 2
FORWARD, GRADIENT = "AvgPool3DD", "AvgPoolGradVm"
GRADIENT_TILE = 20  #: fractals of dx a tile: npusim's choice, between 4 (one slice) and all


@dataclass(frozen=True)
class Job:
    """A launch: slices, window over planes, lines and columns, direction."""

    batch: int
    blocks: int
    window: Window  #: of the average, over (D, H, W); an image has one plane
    gradient: bool

    @staticmethod
    def of(args: KernelArgs) -> Job:
        """From the launch's arguments."""
        gradient = args.op_type == GRADIENT
        if not gradient:
            n, _, c1 = args.operands[0].storage_shape[:3]
            return Job(n, c1, window_of(args, tuple(args.attr("kernel_shape"))), False)
        n, c1 = args.operands[0].storage_shape[:2]
        given = dict(args.attrs)
        attrs = {**WINDOW_ATTRS, "ceil_mode": 0} | {"strides": (1, *given["strides"])}
        before, after = given["pads"][:2], given["pads"][2:]
        attrs["pads"] = (0, *before, 0, *after)
        size, taps = (1, *given["image_shape"]), (1, *given["kernel_shape"])
        return Job(n, c1, Window.of(size, taps, attrs), True)

    @property
    def whole(self) -> bool:
        """Whether the window is the image."""
        return self.window.kernel == self.window.size and set(self.window.out) == {1}

    @property
    def units(self) -> int:
        """(n, output plane, c1) triples."""
        return self.batch * self.window.out[0] * self.blocks

    @property
    def result(self) -> tuple[int, int]:
        """Lines and columns of the result."""
        side = self.window.size if self.gradient else self.window.out
        return side[1], side[2]

    def lines(self, h: Span) -> int:
        """Bytes of a tile's lines in L1."""
        return self.window.kernel[0] * h.valid * self.window.size[2] * C0 * 2


@kernel("BlockDepthwise")
class BlockDepthwise(TileKernel):
    """AvgPool3DD (x, filter → y) and AvgPoolGradVm (dy, mean, filter → dx), fp16."""

    core_type = "AIC"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type not in (FORWARD, GRADIENT) or args.epilogue:
            return f"no program for {args.op_type}"
        spec = args.operands[0]
        layout = Layout.NC1HWC0 if args.op_type == GRADIENT else Layout.NDC1HWC0
        if spec.layout is not layout or spec.dtype is not DType.FLOAT16:
            return f"takes float16 in {layout.value}"
        if chip.core.vector.l0c_rate is None:
            return "leaves L0C through the vector unit, which this chip has not"
        job = Job.of(args)
        if set(job.window.dilations) != {1}:
            return "dilated windows"
        if len(args.inputs) == 2 and job.gradient and not job.whole:
            return "a gradient without filters, but not of means over whole images"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """`rows` of the result a tile; `planes` and `fractals` (positions) a step of the cube."""
        job = Job.of(args)
        w, core = job.window, chip.core
        if _alone(args):
            if 4 * C0 * 2 + prod(job.result) * C0 * 2 <= core.ub.size:
                yield {"rows": job.result[0], "blocks": min(job.units, chip.cores.count)}
            return
        plane = w.kernel[1] * w.kernel[2] * FRACTAL
        planes = min(w.kernel[0], min(core.l0a.size, core.l0b.size) // plane)
        high, wide = job.result
        most = GRADIENT_TILE if job.gradient else core.l0c.size // (2 * C0 * C0 * 4)
        rows = max(1, min(high, most * C0 // wide))
        while rows > 1 and (
            _tile_bytes(job, rows) > core.l1.size // 4
            or _operands_in_ub(job, rows) + 2 * FRACTAL > core.ub.size
        ):
            rows = -(-rows // 2)
        rows = -(-high // -(-high // rows))
        room = (core.ub.size - _operands_in_ub(job, rows)) // (2 * FRACTAL)
        blocks = -(-rows * wide // C0)
        fits = 2 * _tile_bytes(job, rows) + w.taps * FRACTAL <= core.l1.size
        if not planes or room < 1 or not fits or blocks * C0 * C0 * 4 > core.l0c.size:
            return
        slots = 2 if 2 * planes * plane <= core.l0a.size else 1
        yield {
            "rows": rows,
            "planes": planes,
            "slots": slots,
            "fractals": min(blocks, core.l0a.size // slots // (planes * plane), room),
            "blocks": min(job.units, chip.cores.count),
        }

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling; a figure for comparison with other kernels."""
        job = Job.of(args)
        return job.units * (600 + prod(job.result) / C0 * job.window.taps * 3) / tiling["blocks"]

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job, blocks = Job.of(args), tiling["blocks"]
        last = len(args.inputs)
        traffic = {last: Traffic(args.operands[last].nbytes, args.operands[last].nbytes)}
        if not _alone(args):
            filters = job.window.taps * FRACTAL
            traffic[last - 1] = Traffic(filters * job.blocks, filters * job.units)
        if job.gradient:
            tiles = gradient_tiles(job, tiling["rows"])
            read = sum(t.valid for t in tiles) * job.window.out[2] * C0 * 2 * job.units
            for i in (0, 1):
                traffic[i] = Traffic(min(read, args.operands[i].nbytes), read)
        else:
            tiles = spans(job.window, 1, tiling["rows"])
            planes = sum(s.valid for s in spans(job.window, 0, 1))
            line = job.window.size[2] * C0 * 2 * job.batch * job.blocks
            read = sum(t.valid for t in tiles) * planes * line
            traffic[0] = Traffic(min(read, args.operands[0].nbytes), read)
        keys = [deal([job.units], blocks, b)[0].count for b in range(blocks)]
        return Plan(tiling, blocks, traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = Job.of(args)
        share = deal([job.units], tiling["blocks"], block)[0]
        run: _Forward | _Gradient | _Everywhere
        if _alone(args):
            run = _Everywhere(k, job)
        else:
            run = (_Gradient if job.gradient else _Forward)(k, args, job, tiling)
        for i in k.loop(share.count):
            more = i + 1 < share.count
            yield from run.unit(share.start + i, share.start + i + 1 if more else None)


def _alone(args: KernelArgs) -> bool:
    """A gradient without filters."""
    return args.op_type == GRADIENT and len(args.inputs) == 2


def _tile_bytes(job: Job, rows: int) -> int:
    """L1 that the lines of a tile of `rows` take."""
    w = job.window
    if job.gradient:
        return max(t.valid for t in gradient_tiles(job, rows)) * w.out[2] * C0 * 2
    return w.kernel[0] * min(w.size[1], reach(w, 1, rows)) * w.size[2] * C0 * 2


def _operands_in_ub(job: Job, rows: int) -> int:
    """UB that a gradient's dy and means (two of each) and their product take."""
    return 5 * _tile_bytes(job, rows) if job.gradient else 0


def gradient_tiles(job: Job, rows: int) -> list[Span]:
    """Runs of rows of dx, and the rows of dy whose windows reach them."""
    w, found = job.window, []
    step, top, taps = w.strides[1], w.begin[1], w.kernel[1]
    for start in range(0, w.size[1], rows):
        count = min(rows, w.size[1] - start)
        low = max(0, -(-(start + top - taps + 1) // step))
        high = min(w.out[1], (start + count - 1 + top) // step + 1)
        low = min(low, w.out[1] - 1)
        found.append(Span(start, count, low, max(1, high - low), 0, 0))
    return found


class _Run:
    """One block at work: what both directions share."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, tiling: Tiling) -> None:
        self.k, self.args, self.job, self.w = k, args, job, job.window
        w, self._fractals, self._planes = job.window, tiling["fractals"], tiling["planes"]
        self._plane = w.kernel[1] * w.kernel[2]
        step = self._planes * self._plane * FRACTAL
        blocks = -(-tiling["rows"] * job.result[1] // C0)
        room = blocks * C0 * C0 * 4
        self._filters = k.queue("L1", w.taps * FRACTAL, 1, Pipe.MTE2, Pipe.MTE1)
        self._a = k.queue("L0A", self._fractals * step, tiling["slots"], Pipe.MTE1, Pipe.M)
        self._b = k.queue("L0B", step, 1, Pipe.MTE1, Pipe.M)
        self._c = k.queue("L0C", room, min(2, k.chip.core.l0c.size // room), Pipe.M, Pipe.V)
        self._out = k.queue("UB", self._fractals * FRACTAL, 2, Pipe.V, Pipe.MTE3)
        self._flip = False

    def filters(self, source: Region) -> Iterator[Instr]:
        """The matrices of a slice (taps, 16, 16), to L1."""
        slot = yield from self._filters.alloc()
        yield self.k.load(slot.region(source.shape, F16), source)
        yield self._filters.enque()

    def product(
        self,
        lines: Region,
        window: effects.Window,
        first: int,
        count: int,
        top: int,
        target: Region,
    ) -> Iterator[Instr]:
        """Results of `count` positions from `first`: all of them over some planes, then more."""
        k, w = self.k, self.w
        place = yield from self._c.alloc()
        c = place.region((1, -(-count // C0), C0, C0), F32)
        for low in range(0, w.kernel[0], self._planes):
            k1 = min(self._planes, w.kernel[0] - low) * self._plane
            b = yield from self._matrices(low * self._plane, k1)
            for f in range(0, c.shape[1], self._fractals):
                n = min(self._fractals, c.shape[1] - f)
                slot = yield from self._a.alloc()
                a, at = slot.region((n, k1, C0, C0), F16), f * C0
                left, k0 = min(n * C0, count - at), low * self._plane
                yield k.load3d(a, lines, window, first + at, left, k0, top)
                yield self._a.enque()
                yield self._a.deque()
                yield k.mmad(c[:, f : f + n], a, b, low > 0)
                yield self._a.free()
            yield self._b.free()
        yield self._c.enque()
        yield self._c.deque()
        for f in range(0, c.shape[1], self._fractals):
            yield from self._store(c, f, count, target)
        yield self._c.free()

    def _matrices(self, first: int, n: int) -> Generator[Instr, None, Region]:
        """Filters of `n` taps, to L0B; a gradient's from the end."""
        taps = self.w.taps
        taken = self._filters.front.region((taps, C0, C0), F16)
        slot = yield from self._b.alloc()
        b = slot.region((n, 1, C0, C0), F16)
        order = [taps - 1 - t if self._flip else t for t in range(first, first + n)]
        yield self.k.load_l0_pairs([(b[i, 0], taken[t]) for i, t in enumerate(order)])
        yield self._b.enque()
        yield self._b.deque()
        return b

    def _store(self, c: Region, f: int, count: int, target: Region) -> Iterator[Instr]:
        """Fractals of L0C from `f`, through UB to GM."""
        n = min(self._fractals, c.shape[1] - f)
        room = yield from self._out.alloc()
        out = room.region((1, n, C0, C0), F16)
        yield self.k.l0c_to_ub(out, c[:, f : f + n])
        yield self._out.enque()
        yield self._out.deque()
        at = f * C0
        source = Region.dense("UB", -1, out.offset, (min(n * C0, count - at), C0), F16)
        yield self.k.store(target[at : at + source.shape[0]], source)
        yield self._out.free()


class _Forward(_Run):
    """x, filter → y."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, tiling: Tiling) -> None:
        super().__init__(k, args, job, tiling)
        w = job.window
        self._ahead = False
        # Lines load ahead unless outputs share planes along D: then mte1_ratio and mte2_ratio of
        # AvgPool3DD add up to the whole time (Ascend/workload_analysis).
        slots = 2 if w.strides[0] >= w.kernel[0] else 1
        self._tiles = spans(w, 1, tiling["rows"])
        self._x = k.queue("L1", _tile_bytes(job, tiling["rows"]), slots, Pipe.MTE2, Pipe.MTE1)
        (kh, kw), (sh, sw), (top, left) = w.kernel[1:], w.strides[1:], w.begin[1:]
        self._window = effects.Window(
            kh, kw, sh, sw, 1, 1, top, left, w.size[1], w.size[2], w.out[2]
        )
        n, c1, kd = job.batch, job.blocks, w.kernel[0]
        self._gm = Region.dense(GM, 0, 0, (n, w.size[0], c1, *w.size[1:], C0), F16)
        self._y = Region.dense(GM, 2, 0, (n, w.out[0], c1, w.out[1] * w.out[2], C0), F16)
        self._f = Region.dense(GM, 1, 0, (kd, c1, kh * kw, C0, C0), F16)

    def unit(self, u: int, following: int | None) -> Iterator[Instr]:
        """An output plane of a slice; the next tile's lines are asked for early."""
        w = self.w
        if not self._ahead:
            yield from self._load(u, self._tiles[0])
        n, plane, c1 = self._at(u)
        yield from self.filters(self._f[:, c1])
        yield self._filters.deque()
        for i, h in enumerate(self._tiles):
            then = u if i + 1 < len(self._tiles) else following
            self._ahead = then is not None and len(self._x.slots) > 1
            if then is not None and self._ahead:
                yield from self._load(then, self._tiles[(i + 1) % len(self._tiles)])
            yield self._x.deque()
            lines = self._x.front.region((w.kernel[0], h.valid, w.size[2], C0), F16)
            first, count = h.start * w.out[2], h.count * w.out[2]
            target = self._y[n, plane, c1, first : first + count]
            yield from self.product(lines, self._window, first, count, h.first, target)
            yield self._x.free()
            if then is not None and not self._ahead and i + 1 < len(self._tiles):
                yield from self._load(then, self._tiles[i + 1])
        yield self._filters.free()

    def _at(self, u: int) -> tuple[int, int, int]:
        """(n, output plane, c1) of a unit."""
        rest, c1 = divmod(u, self.job.blocks)
        return (*divmod(rest, self.w.out[0]), c1)

    def _load(self, u: int, h: Span) -> Iterator[Instr]:
        """The lines that a tile sees, to L1."""
        n, plane, c1 = self._at(u)
        depth = spans(self.w, 0, 1)[plane]
        slot = yield from self._x.alloc()
        lines = slot.region((self.w.kernel[0], h.valid, self.w.size[2], C0), F16)
        source = self._gm[n, depth.first : depth.first + depth.valid, c1]
        inner = lines[depth.before : depth.before + depth.valid]
        zero = lines if depth.valid < self.w.kernel[0] else None
        yield self.k.load(inner, source[:, h.first : h.first + h.valid], zero)
        yield self._x.enque()


class _Gradient(_Run):
    """dy, mean, filter → dx."""

    def __init__(self, k: Kernel, args: KernelArgs, job: Job, tiling: Tiling) -> None:
        super().__init__(k, args, job, tiling)
        w, self._flip = job.window, True
        n, c1, (_, kh, kw) = job.batch, job.blocks, w.kernel
        self._tiles = gradient_tiles(job, tiling["rows"])
        positions = max(t.valid for t in self._tiles) * w.out[2]
        self._in = k.queue("UB", positions * C0 * 2, 2, Pipe.MTE2, Pipe.V)
        self._mean = k.queue("UB", positions * C0 * 2, 2, Pipe.MTE2, Pipe.V)
        self._spread = k.queue("UB", positions * C0 * 2, 1, Pipe.V, Pipe.MTE3)
        self._lines = k.queue("L1", positions * C0 * 2, 2, Pipe.MTE3, Pipe.MTE1)
        (top, left), (sh, sw) = w.begin[1:], w.strides[1:]
        high, wide = w.out[1:]
        back = (kh - 1 - top, kw - 1 - left)
        self._window = effects.Window(
            kh, kw, 1, 1, 1, 1, *back, high, wide, w.size[2], spread_h=sh, spread_w=sw
        )
        shape = (n * c1, high, wide, C0)
        self._dy, self._means = (Region.dense(GM, i, 0, shape, F16) for i in (0, 1))
        self._f = Region.dense(GM, 2, 0, (c1, kh * kw, C0, C0), F16)
        self._dx = Region.dense(GM, 3, 0, (n * c1, w.size[1] * w.size[2], C0), F16)

    def unit(self, u: int, following: int | None) -> Iterator[Instr]:
        """A slice, by tiles of rows."""
        wide = self.w.size[2]
        for i, t in enumerate(self._tiles):
            if i == 0:
                yield from self._spread_of(u, t)
                yield from self.filters(self._f[u % self.job.blocks])
                yield self._filters.deque()
            if i + 1 < len(self._tiles):
                yield from self._spread_of(u, self._tiles[i + 1])
            yield self._lines.deque()
            lines = self._lines.front.region((1, t.valid, self.w.out[2], C0), F16)
            first, count = t.start * wide, t.count * wide
            target = self._dx[u, first : first + count]
            yield from self.product(lines, self._window, first, count, t.first, target)
            yield self._lines.free()
        yield self._filters.free()

    def _spread_of(self, u: int, t: Span) -> Iterator[Instr]:
        """dy times the means, of the rows that a tile sees, to L1."""
        k, tiles = self.k, []
        for queue, gm in ((self._in, self._dy), (self._mean, self._means)):
            slot = yield from queue.alloc()
            tiles.append(slot.region((t.valid, self.w.out[2], C0), F16))
            yield k.load(tiles[-1], gm[u, t.first : t.first + t.valid])
            yield queue.enque()
            yield queue.deque()
        place = yield from self._spread.alloc()
        spread = place.region(tiles[0].shape, F16)
        yield k.vec("mul", spread, *tiles)
        yield self._in.free()
        yield self._mean.free()
        yield self._spread.enque()
        yield self._spread.deque()
        room = yield from self._lines.alloc()
        yield self._to_l1(room.region(spread.shape, F16), spread)
        yield self._spread.free()
        yield self._lines.enque()

    def _to_l1(self, dst: Region, src: Region) -> Instr:
        """MTE3: UB → L1."""
        mte3 = self.k.chip.core.mte3
        cycles = mte3.head + -(-src.nbytes // int(mte3.l1_rate or mte3.rate))
        effect = effects.Copy(((dst, src),)) if self.k.functional else None
        issue = self.k.chip.core.scalar.issue
        return Instr(isa.Kind.LOCAL, Pipe.MTE3, "copy_ub_l1", issue, cycles, 0, effect)


class _Everywhere:
    """dy, mean → dx of a mean over the whole image, one slice after the other."""

    def __init__(self, k: Kernel, job: Job) -> None:
        self.k, slices, positions = k, job.units, prod(job.window.size)
        self._in = k.queue("UB", C0 * 2, 2, Pipe.MTE2, Pipe.V, ("UB", C0 * 2))
        self._out = k.queue("UB", positions * C0 * 2, 1, Pipe.V, Pipe.MTE3)
        self._dy, self._means = (Region.dense(GM, i, 0, (slices, 1, C0), F16) for i in (0, 1))
        self._dx = Region.dense(GM, 2, 0, (slices, positions, C0), F16)

    def unit(self, u: int, following: int | None) -> Iterator[Instr]:
        """A slice."""
        k = self.k
        slot = yield from self._in.alloc()
        dy, mean = (a.region((1, C0), F16) for a in (slot, self._in.back_partner))
        yield k.load(dy, self._dy[u])
        yield k.load(mean, self._means[u])
        yield self._in.enque()
        yield self._in.deque()
        yield k.vec("mul", dy, dy, mean)
        room = yield from self._out.alloc()
        out = room.region(self._dx.shape[1:], F16)
        yield k.vec("copy", out, dy)
        yield self._in.free()
        yield self._out.enque()
        yield self._out.deque()
        yield k.store(self._dx[u], out)
        yield self._out.free()
