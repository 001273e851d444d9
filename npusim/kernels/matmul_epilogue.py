"""MatMulEpilogue: a matrix product, and elementwise steps that FIXP lacks, on both kinds of core.

Where cube and vector cores are apart (910B) a result leaves L0C through FIXP, which adds a bias and
does ReLU. Other activations need the vector cores. As CANN's FFN (Atlas A2, 16-bit types: product,
workspace, activation), this MIX kernel lets both work at once, tile by tile:

    cube    tile t, with its bias      → workspace, stored type
    vector  tile t - 1 from workspace: the steps in fp32 → GM; each vector core half of the rows

The workspace, two tiles per cube core, stays in L2. A tile is rounded where it enters it, as
between two kernels. Tiling: MatMul's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.ir.layout import blocks
from npusim.kernels import epilogue as ep
from npusim.kernels import vector_ops
from npusim.kernels.cross_core import await_signal, signal
from npusim.kernels.cube_tiling import Share, share
from npusim.kernels.expressions import LOWER, lower
from npusim.kernels.lang import Kernel
from npusim.kernels.matmul import Body, MatMul
from npusim.kernels.matmul_tiling import Problem, matmul_estimate, problem
from npusim.kernels.vector_program import F32, Builder, Program, Value
from npusim.ops import get_operator
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Member, Plan, Tiling, Traffic, kernel
from npusim.program.region import GM, Region

SLOTS = 2  #: tiles of a cube core in the workspace
VECTORS = 2  #: vector cores of a cube core
CUBE, VECTOR = 0, 1  #: numbers of the block's cores; VECTOR + 1 is the second vector core
READY, FREE = 0, 10  #: events between the cores; a vector core's own: plus its number


@dataclass(frozen=True)
class Tile:
    """A tile of the result: `index` counts the block's tiles, `n1` is its first column block."""

    index: int
    span: ep.TileSpan
    n1: int
    width: int

    def half(self, number: int) -> tuple[int, int]:
        """(first, count) of the rows that vector core 0 or 1 takes."""
        first = -(-self.span.rows // VECTORS)
        return (0, first) if number == 0 else (first, self.span.rows - first)


def tiles(p: Problem, t: Tiling, s: Share) -> list[Tile]:
    """The tiles of a share, in the order in which MatMul makes them."""
    m_tiles, n_tiles = blocks(s.m, t["m0"] * 16), blocks(s.n, t["n0"] * 16)
    places = [(mi, ni) for mi in range(m_tiles) for ni in range(n_tiles)]
    if t["resident"] == 2:
        places.sort(key=lambda at: (at[1], at[0]))
    found: list[Tile] = []
    for b in range(s.batches):
        for mi, ni in places:
            row, column = mi * t["m0"] * 16, ni * t["n0"] * 16
            rows, columns = min(t["m0"] * 16, s.m - row), min(t["n0"] * 16, s.n - column)
            span = ep.TileSpan(s.batch0 + b, s.m0 + row, rows, blocks(rows) * 16)
            place = (s.n0 + column) // 16
            found.append(Tile(len(found), span, place, blocks(columns) * 16))
    return found


@lru_cache(maxsize=256)
def program(args: KernelArgs) -> Program:
    """The steps on a stored product."""
    stored = args.outputs[0].dtype.np
    b = Builder(F32, 1, half=True)
    running: Any = Value(stored, (True,), 0)
    for step in args.epilogue:
        attrs = {**get_operator(step.op_type).attrs, **dict(step.attrs)}
        constants = [attrs["const1"]] if "const1" in attrs else []
        (running,) = lower(b, step.op_type, attrs, [running, *constants])
    return b.finish([running], [stored])


def vector_cycles(args: KernelArgs, chip: ChipSpec, elements: float) -> float:
    """Cycles of a vector core's steps on so many elements."""
    costs, total = chip.core.vector.costs, 0.0
    for step in program(args).steps:
        width = max(v.dtype.itemsize for v in (step.dst, *step.srcs))
        cost = costs[vector_ops.get(step.op).cost]
        total += ((cost.b16 if width <= 2 else cost.b32) or 0.0) * width
    return total * elements / chip.core.vector.repeat_bytes


@dataclass(frozen=True)
class Workspace:
    """Where a block's tiles lie between cube and vector."""

    args: KernelArgs
    block: int
    slot: int  #: bytes

    @staticmethod
    def of(args: KernelArgs, t: Tiling, block: int) -> Workspace:
        """The workspace of a block."""
        return Workspace(args, block, t["m0"] * t["n0"] * 256 * args.outputs[0].dtype.size)

    def region(self, tile: Tile) -> Region:
        """(rows, columns in whole blocks) of a tile."""
        start = (self.block * SLOTS + tile.index % SLOTS) * self.slot
        shape, dtype = (tile.span.rows, tile.width), self.args.outputs[0].dtype.np
        return Region.dense(GM, len(self.args.operands), start, shape, dtype)


@kernel("MatMulEpilogue")
class MatMulEpilogue(MatMul):
    """Batched matrix product on cube cores, further steps on vector cores."""

    core_type = "MIX"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """16-bit results in ND; steps of one operand that the vector unit has."""
        if not chip.cores.split:
            return "cube and vector are one core"
        reason = MatMul.refuse(replace(args, epilogue=()), chip)
        out = args.outputs[0]
        if reason or not args.epilogue:
            return reason or "no steps"
        if out.dtype.size != 2 or not out.dtype.is_float or out.layout is not Layout.ND:
            return f"results in float16 or bfloat16 and ND, not {out.dtype.value}"
        for step in args.epilogue:
            if step.operand is not None or step.op_type not in LOWER:
                return f"epilogue {step.op_type} with an operand, or not on the vector unit"
        return ""

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """MatMul's, or the vector cores' if they take longer; the last tile's steps follow."""
        p = problem(args)
        s = share(p, tiling, 0)
        rows, columns = min(s.m, tiling["m0"] * 16), min(s.n, tiling["n0"] * 16)
        last = vector_cycles(args, chip, rows * columns / VECTORS)
        steps = vector_cycles(args, chip, s.batches * s.m * s.n / VECTORS)
        product = matmul_estimate(p, chip, tiling)
        launch = chip.cycles(chip.scheduler.per_block) * tiling["bb"] * tiling["bm"] * tiling["bn"]
        return max(product, steps + launch) + last + 2 * ep.load_latency(chip)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """MatMul's, and the workspace, which is written and read."""
        plan, p = MatMul.plan(args, chip, tiling), problem(args)
        each = [tiles(p, tiling, share(p, tiling, b)) for b in range(plan.block_dim)]
        size = sum(t.span.rows * t.width for found in each for t in found)
        moved = 2 * size * args.outputs[0].dtype.size
        traffic = {**plan.traffic, len(args.operands): Traffic(0, moved)}
        room = plan.block_dim * SLOTS * Workspace.of(args, tiling, 0).slot
        return replace(plan, traffic=traffic, workspace=(room,))

    @classmethod
    def members(
        cls,
        args: KernelArgs,
        chip: ChipSpec,
        plan: Plan,
        block: int,
        phase: int,
        functional: bool,
    ) -> list[Member]:
        """The cube core, then its vector cores; one of those stands for two that are alike."""
        p, t = problem(args), plan.tiling
        s = share(p, t, block)
        mine, workspace = tiles(p, t, s), Workspace.of(args, t, block)
        vectors = 1 if s.m % VECTORS == 0 and not functional else VECTORS
        k = Kernel(chip, args, block, functional)
        cube = _CubeBody(k, replace(p, spec=replace(p.spec, steps=())), t, s)
        cube.out.hand_over(mine, workspace, vectors)
        out = [Member(k, cube.run())]
        for number in range(vectors):
            k = Kernel(chip, args, block, functional)
            steps = _Steps(k, p, t["m0"] * t["n0"] * 256)
            out.append(Member(k, steps.run(mine, workspace, number), VECTORS // vectors))
        return out


class _ToWorkspace(ep.CubeOutput):
    """Takes finished tiles to the workspace, and tells the vector cores."""

    def hand_over(self, mine: list[Tile], workspace: Workspace, vectors: int) -> None:
        """Say which tiles come, where they go, and to how many vector cores."""
        self._tiles, self._workspace, self._vectors = iter(mine), workspace, vectors

    def drain(self, n1: int, n_blocks: int, n_valid: int, tile: ep.TileSpan) -> Iterator[Instr]:
        """The oldest full tile, once the vector cores have read the one that lay in its place."""
        self._tile = next(self._tiles)
        if self._tile.index >= SLOTS:
            for v in range(self._vectors):
                yield await_signal(self._k, Pipe.MTE2, Pipe.FIXP, FREE + v)
        yield from super().drain(n1, n_blocks, n_valid, tile)
        for v in range(self._vectors):
            yield signal(self._k, VECTOR + v, Pipe.FIXP, Pipe.MTE2, READY + v)

    def _target(self, local: Region, n1: int, tile: ep.TileSpan) -> list[tuple[Region, Region]]:
        gm = self._workspace.region(self._tile).split(1, 16)
        return [(gm, local[:, : tile.rows].permute(1, 0, 2))]


class _CubeBody(Body):
    """The cube core's program: MatMul's, whose tiles go to the workspace."""

    out: _ToWorkspace

    def output(self) -> ep.CubeOutput:
        """The way to the workspace."""
        p, t, s = self.p, self.t, self.s
        return _ToWorkspace(self.k, p.spec, p.out, (t["m0"], t["n0"]), (s.n0, s.n))


class _Steps:
    """A vector core's program: `tile` is the elements of a whole tile."""

    def __init__(self, k: Kernel, p: Problem, tile: int) -> None:
        self.k, self.p, self.program = k, p, program(k.args)
        dtype = k.args.outputs[0].dtype
        each = 4 * dtype.size + sum(self.program.registers)
        self.most = min(tile // VECTORS, k.chip.core.ub.size // each // 16 * 16)
        size = self.most * dtype.size
        self.dtype = dtype.np
        self.inputs = k.queue("UB", size, 2, Pipe.MTE2, Pipe.V)
        self.outputs = k.queue("UB", size, 2, Pipe.V, Pipe.MTE3)
        self.words = [k.alloc("UB", self.most * n) for n in self.program.registers]

    def run(self, mine: list[Tile], workspace: Workspace, number: int) -> Iterator[Instr]:
        """This core's rows of every tile."""
        k = self.k
        for tile in mine:
            first, rows = tile.half(number)
            yield await_signal(k, Pipe.FIXP, Pipe.MTE2, READY + number)
            step = max(1, self.most // tile.width)
            source = workspace.region(tile)
            for row in range(first, first + rows, step):
                n = min(step, first + rows - row)
                slot = yield from self.inputs.alloc()
                src, dst = source[row : row + n], slot.region((n, tile.width), self.dtype)
                yield k.memo(("in", n, tile.width), lambda d=dst, s=src: k.load(d, s))  # type: ignore[misc]
                yield self.inputs.enque()
                if row + n == first + rows:
                    yield from self._release(tile, mine, number)
                yield from self._compute(n * tile.width)
                yield from self._leave(tile, row, n)
            if not rows:
                yield from self._release(tile, mine, number)

    def _release(self, tile: Tile, mine: list[Tile], number: int) -> Iterator[Instr]:
        """The tile's place may be taken, if one more comes there."""
        if tile.index + SLOTS < len(mine):
            yield signal(self.k, CUBE, Pipe.MTE2, Pipe.FIXP, FREE + number)

    def _compute(self, size: int) -> Iterator[Instr]:
        """The steps on the oldest loaded rows."""
        k, steps = self.k, self.program
        yield self.inputs.deque()
        result = yield from self.outputs.alloc()

        def place(v: Value) -> Region:
            if v in steps.results:
                return result.region((size,), v.dtype)
            held = self.inputs.front if v.operand >= 0 else self.words[steps.slots[v]]
            return held.region((size,), v.dtype)

        for i, line in enumerate(steps.steps):
            yield k.memo(
                ("step", i, size),
                lambda s=line: k.vec(s.op, place(s.dst), *map(place, s.srcs), scalar=s.scalar),  # type: ignore[misc]
            )
        yield self.inputs.free()
        yield self.outputs.enque()

    def _leave(self, tile: Tile, row: int, rows: int) -> Iterator[Instr]:
        """Finished rows to GM, without the columns that fill the last block."""
        k, p = self.k, self.p
        yield self.outputs.deque()
        columns = min(tile.width, p.n - tile.n1 * 16)

        def store() -> Instr:
            es, at = self.dtype.itemsize, tile.span
            start = ((at.batch * p.m + at.row0 + row) * p.n + tile.n1 * 16) * es
            shape, strides = (rows, columns), (p.n * es, es)
            gm = Region(GM, len(k.args.inputs), start, shape, strides, self.dtype)
            local = self.outputs.front.region((rows, tile.width), self.dtype)
            return k.store(gm, local[:, :columns])

        yield k.memo(("out", rows, tile.width, columns), store)
        yield self.outputs.free()
