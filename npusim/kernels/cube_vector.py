"""A cube core and its two vector cores at work on the same tiles, where the chip has them apart.

    cube    tile t, with its bias      → workspace, stored type
    vector  tile t - 1 from workspace: the steps → GM; each vector core half of the tile

A cube core's part of the workspace holds two tiles; it stays in L2. A tile is rounded where it
enters it, as between two kernels. Operands of the steps are loaded before the wait for the tile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, Protocol

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.ir.layout import blocks
from npusim.kernels import epilogue as ep
from npusim.kernels import epilogue_costs as costs
from npusim.kernels import vector_ops
from npusim.kernels.cross_core import await_signal, signal
from npusim.kernels.cube_tiling import Share
from npusim.kernels.elementwise import LOWER  # with all that register programs
from npusim.kernels.expressions import lower, working_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.queues import Queue
from npusim.kernels.vector_program import Builder, Program, Value
from npusim.ops import get_operator
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import KernelArgs, Member, Plan, Tiling, Traffic
from npusim.program.region import GM, Region

SLOTS = 2  #: tiles of a cube core in the workspace
VECTORS = 2  #: vector cores of a cube core
CUBE, VECTOR = 0, 1  #: numbers of the block's cores; VECTOR + 1 is the second vector core
READY, FREE = 0, 10  #: events between the cores; a vector core's own: plus its number
TILE = 0  #: what a program calls the tile itself; other operands have their own numbers


# -- what the vector cores compute ----


@lru_cache(maxsize=256)
def program(args: KernelArgs) -> Program:
    """The steps on a stored tile, in the type in which a kernel of its own would compute them."""
    stored = args.outputs[0].dtype.np
    others = {
        s.operand: args.operands[s.operand].dtype.np for s in args.epilogue if s.operand is not None
    }
    kinds = {stored, *others.values()}
    work = working_type([(s.op_type, 2) for s in args.epilogue], kinds)
    b = Builder(work, 1, half=all(kind.itemsize == 2 for kind in kinds))
    running: Any = Value(stored, (True,), TILE)
    for step in args.epilogue:
        attrs = {**get_operator(step.op_type).attrs, **dict(step.attrs)}
        more: list[Any] = [attrs["const1"]] if "const1" in attrs else []
        if step.operand is not None:
            more = [Value(others[step.operand], (True,), step.operand)]
        (running,) = lower(b, step.op_type, attrs, [running, *more])
    return b.finish([running], [stored])


def refuse_steps(args: KernelArgs, chip: ChipSpec) -> str:
    """Why the vector cores cannot do the steps on tiles; '' where they can.

    Operands of steps are constants, or tensors that lie as the result does.
    """
    if not chip.cores.split:
        return "cube and vector are one core"
    if not args.epilogue:
        return "no steps"
    out = args.outputs[0]
    for step in args.epilogue:
        if step.op_type not in LOWER or not get_operator(step.op_type).elementwise:
            return f"epilogue {step.op_type}, which is not on the vector unit"
        if step.operand is None:
            continue
        other = args.operands[step.operand]
        if other is None or other.shape != out.shape:
            return f"epilogue {step.op_type} broadcasts its operand"
        if other.layout is not out.layout or not other.dtype.is_float:
            return f"epilogue {step.op_type} of {other.dtype.value} in {other.layout.value}"
    for line in program(args).steps:
        if vector_ops.get(line.op).cost not in chip.core.vector.costs:
            return f"the vector unit has no {line.op}"
    return ""


@dataclass(frozen=True)
class Demand:
    """What a vector core spends on an element of a tile.

    Attributes:
        passes: (cost class, 16-bit, bytes) of its instructions; instructions: how many there are.
        loads: operands loaded, the tile among them; loaded: their bytes; held: bytes of UB.
        through_l2: bytes of all tiles and operands, out of the workspace and to the result;
        others: of operands alone.
    """

    passes: tuple[tuple[str, bool, int], ...]
    instructions: int
    loads: int
    loaded: int
    held: int
    through_l2: int
    others: int


@lru_cache(maxsize=256)
def demand(args: KernelArgs) -> Demand:
    """Of the launch's steps."""
    steps, passes = program(args), dict[tuple[str, bool], int]()
    for line in steps.steps:
        width = max(v.dtype.itemsize for v in (line.dst, *line.srcs))
        key = vector_ops.get(line.op).cost, width <= 2
        passes[key] = passes.get(key, 0) + width
    loaded = sum(v.dtype.itemsize for v in steps.loads)
    held = 2 * loaded + 2 * args.outputs[0].dtype.size + sum(steps.registers)
    found = tuple((*key, width) for key, width in passes.items())
    others = sum(args.operands[s.operand].nbytes for s in args.epilogue if s.operand is not None)
    through_l2 = 2 * args.outputs[0].nbytes + others
    return Demand(found, len(steps.steps), len(steps.loads), loaded, held, through_l2, others)


def room(args: KernelArgs, chip: ChipSpec) -> int:
    """Elements on which a vector core can work at once."""
    return chip.core.ub.size // demand(args).held // 16 * 16


def vector_cycles(args: KernelArgs, chip: ChipSpec, elements: float) -> float:
    """Cycles of a vector core's steps on so many elements."""
    costs, total = chip.core.vector.costs, 0.0
    for kind, narrow, width in demand(args).passes:
        cost = costs[kind]
        total += ((cost.b16 if narrow else cost.b32) or 0.0) * width
    return total * elements / chip.core.vector.repeat_bytes


def steps_cycles(
    args: KernelArgs, chip: ChipSpec, tiles: Tiles, block_dim: int
) -> tuple[float, float]:
    """Estimated cycles of a vector core with its half of a share's tiles, and with the last ones.

    Tiles that the cube core computes at once come at once.
    """
    core, need, count = chip.core, demand(args), tiles.count
    elements = tiles.elements / VECTORS
    pieces = max(count, elements / room(args, chip))
    share = chip.l2_rate / (VECTORS * block_dim)
    load = elements * need.loaded / min(core.mte2.ub_rate, share)
    load += pieces * need.loads * core.mte2.head
    store = elements * args.outputs[0].dtype.size / min(core.mte3.rate, share)
    store += pieces * core.mte3.head
    busy = vector_cycles(args, chip, elements)
    busy += pieces * need.instructions * (core.vector.head + core.vector.tail)
    turn = (load + busy + pieces * costs.load_latency(chip)) / 2  # two slots of UB
    return max(load, busy, store, turn), (load + busy + store) * tiles.images / count


# -- tiles ----


@dataclass(frozen=True)
class Result:
    """How a result lies in GM: matrices of M × N, by rows (ND) or by blocks of 16 columns."""

    m: int
    n: int
    by_rows: bool


@dataclass(frozen=True)
class Part:
    """Strips and rows of a tile."""

    strip: int
    strips: int
    row: int
    rows: int


@dataclass(frozen=True)
class Tile:
    """A tile as (strips, rows, columns of a strip): one strip of whole rows, or one of each block.

    Attributes:
        shape: in the workspace and in UB.
        columns: of a strip, those that the result has.
        start, strides: of the tile's first element, and of strips and rows, in GM, in elements.
    """

    shape: tuple[int, int, int]
    columns: int
    start: int
    strides: tuple[int, int]

    def half(self, number: int) -> Part:
        """What vector core 0 or 1 takes: half of the strips, else of the rows."""
        strips, rows, _ = self.shape
        if strips % VECTORS == 0:
            each = strips // VECTORS
            return Part(number * each, each, 0, rows)
        first = blocks(rows, VECTORS)
        return Part(0, strips, 0, first) if number == 0 else Part(0, strips, first, rows - first)

    def parts(self, number: int, most: int) -> list[Part]:
        """The half of a vector core in pieces of up to `most` elements."""
        half = self.half(number)
        if not half.rows:
            return []
        rows = min(half.rows, most // self.shape[2])
        strips = max(1, min(half.strips, most // (rows * self.shape[2])))
        return [
            Part(
                s, min(strips, half.strip + half.strips - s), r, min(rows, half.row + half.rows - r)
            )
            for s in range(half.strip, half.strip + half.strips, strips)
            for r in range(half.row, half.row + half.rows, rows)
        ]

    def gm(self, part: Part, operand: int, dtype: Any) -> Region:
        """Where a part lies in an operand shaped as the result."""
        es, (strip, row) = dtype.itemsize, self.strides
        start = self.start + part.strip * strip + part.row * row
        shape = (part.strips, part.rows, self.columns)
        return Region(GM, operand, start * es, shape, (strip * es, row * es, es), dtype)


@dataclass(frozen=True)
class Tiles:
    """A share's tiles of m0 × n0 elements, in the loops in which the cube core makes them.

    `order`: the axes (0 batch, 1 M, 2 N) of the loops, outermost first. `images`: batches that
    the cube core computes at once; each is a tile of its own here.
    """

    result: Result
    share: Share
    m0: int
    n0: int
    order: tuple[int, int, int]
    images: int = 1

    @property
    def count(self) -> int:
        """All tiles."""
        s = self.share
        return s.batches * blocks(s.m, self.m0) * blocks(s.n, self.n0)

    @property
    def elements(self) -> int:
        """Of all tiles, as they lie in the workspace."""
        return self.share.batches * self.share.m * blocks(self.share.n) * 16

    @property
    def alike(self) -> bool:
        """Both vector cores do the same."""
        s = self.share
        strips = {min(self.n0, s.n - at) for at in range(0, s.n, self.n0)}
        even = not self.result.by_rows and all(blocks(n) % VECTORS == 0 for n in strips)
        return even or s.m % VECTORS == 0

    def shape(self, rows: int, strips: int) -> tuple[int, int, int]:
        """Of a tile of so many blocks of 16 columns."""
        return (1, rows, strips * 16) if self.result.by_rows else (strips, rows, 16)

    def __iter__(self) -> Iterator[Tile]:
        """All tiles, in order."""
        s = self.share
        starts = range(0, s.batches, self.images), range(blocks(s.m, self.m0))
        loops = *starts, range(blocks(s.n, self.n0))
        for place in product(*(loops[axis] for axis in self.order)):
            at = dict(zip(self.order, place, strict=True))
            for image in range(at[0], min(at[0] + self.images, s.batches)):
                yield self._tile({**at, 0: image})

    def _tile(self, at: dict[int, int]) -> Tile:
        """The tile at a batch, an M and an N tile of the share."""
        s, r = self.share, self.result
        row, column = at[1] * self.m0, s.n0 + at[2] * self.n0
        rows, columns = min(self.m0, s.m - row), min(self.n0, s.n0 + s.n - column)
        batch, row, shape = s.batch0 + at[0], row + s.m0, self.shape(rows, blocks(columns))
        if r.by_rows:
            return Tile(shape, columns, (batch * r.m + row) * r.n + column, (0, r.n))
        start = ((batch * blocks(r.n) + column // 16) * r.m + row) * 16
        return Tile(shape, 16, start, (r.m * 16, 16))


@dataclass(frozen=True)
class Workspace:
    """Where a block's tiles lie between cube and vector; `slot`: bytes of one."""

    args: KernelArgs
    block: int
    slot: int

    def region(self, index: int, shape: tuple[int, int, int]) -> Region:
        """The block's tile number `index`."""
        start = (self.block * SLOTS + index % SLOTS) * self.slot
        return Region.dense(
            GM, len(self.args.operands), start, shape, self.args.outputs[0].dtype.np
        )


# -- the cores' programs ----


class ToWorkspace(ep.CubeOutput):
    """Takes finished tiles to the workspace, and tells the vector cores."""

    def hand_over(self, tiles: Tiles, workspace: Workspace, vectors: int) -> None:
        """Say how tiles lie, where they go, and to how many vector cores."""
        self._tiles, self._workspace, self._vectors, self._index = tiles, workspace, vectors, 0

    def _await_place(self) -> Iterator[Instr]:
        """The vector cores have read the tile that lay where the next one goes."""
        if self._index >= SLOTS:
            for v in range(self._vectors):
                yield await_signal(self._k, Pipe.MTE2, Pipe.FIXP, FREE + v)

    def _leave(self, l0c: Region, n1: int, n_valid: int, tile: ep.TileSpan) -> Iterator[Instr]:
        """A tile, and word to the vector cores."""
        yield from super()._leave(l0c, n1, n_valid, tile)
        self._index += 1
        for v in range(self._vectors):
            yield signal(self._k, VECTOR + v, Pipe.FIXP, Pipe.MTE2, READY + v)

    def _target(self, local: Region, n1: int, tile: ep.TileSpan) -> list[tuple[Region, Region]]:
        gm = self._workspace.region(self._index, self._tiles.shape(tile.rows, local.shape[0]))
        local = local[:, : tile.rows]
        if self._tiles.result.by_rows:
            return [(gm[0].split(1, 16), local.permute(1, 0, 2))]
        return [(gm, local)]


class CubeProgram(Protocol):
    """A cube core's program, whose `out` is a `ToWorkspace`."""

    out: Any

    def run(self) -> Iterator[Instr]:
        """Makes the tiles."""


class Steps:
    """A vector core's program."""

    def __init__(self, k: Kernel, tiles: Tiles, workspace: Workspace, number: int) -> None:
        self.k, self.tiles, self.workspace, self.number = k, tiles, workspace, number
        self.program = program(k.args)
        self.dtype = k.args.outputs[0].dtype.np
        self.most = min(tiles.m0 * tiles.n0 // VECTORS, room(k.args, k.chip))
        self.inputs: dict[Value, Queue] = {}
        for v in self.program.loads:
            size = self.most * v.dtype.itemsize
            self.inputs[v] = k.queue("UB", size, 2, Pipe.MTE2, Pipe.V)
        self.outputs = k.queue("UB", self.most * self.dtype.itemsize, 2, Pipe.V, Pipe.MTE3)
        self.words = [k.alloc("UB", self.most * n) for n in self.program.registers]

    def run(self) -> Iterator[Instr]:
        """This core's half of every tile."""
        for index, tile in enumerate(self.tiles):
            yield from self._tile(tile, index)

    def _release(self, index: int) -> Iterator[Instr]:
        """The tile's place may be taken, if one more comes there."""
        if index + SLOTS < self.tiles.count:
            yield signal(self.k, CUBE, Pipe.MTE2, Pipe.FIXP, FREE + self.number)

    def _tile(self, tile: Tile, index: int) -> Iterator[Instr]:
        arrived = await_signal(self.k, Pipe.FIXP, Pipe.MTE2, READY + self.number)
        parts = tile.parts(self.number, self.most)
        if not parts:
            yield arrived
            yield from self._release(index)
        for part in parts:
            for late in (False, True):
                if late and part is parts[0]:
                    yield arrived
                for v, queue in self.inputs.items():
                    if (v.operand == TILE) is late:
                        yield from self._load(v, queue, tile, part, index)
            if part is parts[-1]:
                yield from self._release(index)
            yield from self._compute(part.strips * part.rows * tile.shape[2])
            yield from self._leave(tile, part)

    def _load(self, v: Value, queue: Queue, tile: Tile, part: Part, index: int) -> Iterator[Instr]:
        """A part of the tile, or of another operand, into UB."""
        slot = yield from queue.alloc()

        def load() -> Instr:
            local = slot.region((part.strips, part.rows, tile.shape[2]), v.dtype)
            if v.operand != TILE:
                return self.k.load(local[:, :, : tile.columns], tile.gm(part, v.operand, v.dtype))
            strips = slice(part.strip, part.strip + part.strips)
            source = self.workspace.region(index, tile.shape)
            return self.k.load(local, source[strips, part.row : part.row + part.rows])

        yield self.k.memo(("in", v.operand, part.strips, part.rows, tile.shape), load)
        yield queue.enque()

    def _compute(self, size: int) -> Iterator[Instr]:
        """The steps on the oldest loaded part."""
        k, steps = self.k, self.program
        for queue in self.inputs.values():
            yield queue.deque()
        result = yield from self.outputs.alloc()

        def place(v: Value) -> Region:
            if v in steps.results:
                return result.region((size,), v.dtype)
            held = self.inputs[v].front if v.operand >= 0 else self.words[steps.slots[v]]
            return held.region((size,), v.dtype)

        for i, line in enumerate(steps.steps):
            yield k.memo(
                ("step", i, size),
                lambda s=line: k.vec(s.op, place(s.dst), *map(place, s.srcs), scalar=s.scalar),  # type: ignore[misc]
            )
        for queue in self.inputs.values():
            yield queue.free()
        yield self.outputs.enque()

    def _leave(self, tile: Tile, part: Part) -> Iterator[Instr]:
        """A finished part to GM, without the columns that fill the last block of a row."""
        yield self.outputs.deque()

        def store() -> Instr:
            gm = tile.gm(part, len(self.k.args.inputs), self.dtype)
            local = self.outputs.front.region((part.strips, part.rows, tile.shape[2]), self.dtype)
            return self.k.store(gm, local[:, :, : tile.columns])

        yield self.k.memo(("out", part.strips, part.rows, tile.shape, tile.columns), store)
        yield self.outputs.free()


class BothCores(TileKernel):
    """Base of the kernels whose cube cores hand tiles to their vector cores."""

    core_type = "MIX"

    @staticmethod
    def replaceable(args: KernelArgs) -> Collection[int]:
        """What the steps read, where the result of the same place is stored later."""
        return [s.operand for s in args.epilogue if s.operand is not None]

    @staticmethod
    def tiles(args: KernelArgs, tiling: Tiling, block: int) -> Tiles:
        """What a block's cube core makes."""
        raise UnsupportedError("tiles of an abstract kernel", "-", "implement tiles")

    @staticmethod
    def cube(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> CubeProgram:
        """What makes them."""
        raise UnsupportedError("cube program of an abstract kernel", "-", "implement cube")

    @classmethod
    def with_workspace(cls, plan: Plan, args: KernelArgs) -> Plan:
        """A product's plan, and the workspace: written and read, two tiles a block."""
        size = args.outputs[0].dtype.size
        shares = [cls.tiles(args, plan.tiling, block) for block in range(plan.block_dim)]
        moved = 2 * sum(tiles.elements for tiles in shares) * size
        room = plan.block_dim * SLOTS * shares[0].m0 * shares[0].n0 * size
        traffic = {**plan.traffic, len(args.operands): Traffic(0, moved)}
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
        tiles = cls.tiles(args, plan.tiling, block)
        workspace = Workspace(args, block, tiles.m0 * tiles.n0 * args.outputs[0].dtype.size)
        vectors = 1 if tiles.alike and not functional else VECTORS
        k = Kernel(chip, args, block, functional)
        body = cls.cube(k, args, plan.tiling, block)
        body.out.hand_over(tiles, workspace, vectors)
        out = [Member(k, body.run())]
        for number in range(vectors):
            k = Kernel(chip, args, block, functional)
            out.append(Member(k, Steps(k, tiles, workspace, number).run(), VECTORS // vectors))
        return out
