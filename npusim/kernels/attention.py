"""FlashAttentionScore: softmax(scale · Q·Kᵀ, masked)·V, whose scores never lie in HBM.

Where cube and vector cores are apart (910B) this is CANN's MIX kernel for long rows
(`flash_attention_score_s1s2_bn2gs1_sab`): a cube core and its two vector cores work on one band of
256 query rows of a head, against tasks of 1024 keys, in three stages:

    cube    scores of task t                      → workspace, fp32
    vector  probabilities of task t - 1           → workspace, stored type; half of the rows each
    cube    products with V of task t - 1         → workspace, fp32
    vector  sums of task t - 2, brought to the newest maximum

The workspace is small and stays in L2, whose bandwidth it takes: some 4 MB per task. Flags between
the cores (CrossCoreSetFlag) order the stages. On chips whose cores do both, see
`attention_unified`. Keys that the whole band does not see are skipped.

Tiling: s1 rows of a band, s2 keys of a task, cores among which bands are dealt; where cores are
split, tile: scores in UB together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from npusim.chip.spec import ChipSpec
from npusim.kernels import attention_unified as unified
from npusim.kernels.attention_cube import ScoresAndValues
from npusim.kernels.attention_shape import (
    F32,
    LINE,
    Band,
    Problem,
    band,
    band_starts,
    problem,
    refuse_attention,
    up,
)
from npusim.kernels.attention_vector import CALL, Accumulate, Softmax, stat_rows
from npusim.kernels.cross_core import await_signal, signal
from npusim.kernels.lang import Kernel, TileKernel, fits
from npusim.kernels.row_softmax import tile_rows
from npusim.ops.training_attention import STATS
from npusim.program.isa import Instr, Pipe
from npusim.program.kernel import (
    KernelArgs,
    Member,
    Plan,
    Tiling,
    Traffic,
    group_blocks,
    kernel,
)
from npusim.program.region import GM, Region

MASK, BIAS = 3, 4  #: indices of the mask and of the bias (pse) among the inputs
BAND = 256  #: query rows of a band (CANN: s1BaseSize)
BANDS = (BAND, BAND // 2, BAND // 4)
SMALL_BANDS = (32, 16)  #: for cores whose buffers hold none of these
#: Scores of a tile in fp32; the first that UB holds: 32 KiB on the chips themselves.
TILES = (8192, 4096, 2048, 1024, 512, 256)
TASK = 1024  #: keys of a task (CANN: s2BaseSize 128 × nRatio 8)
#: Workspace operands, after inputs and outputs: scores, probabilities, products, sums.
SCORES, PROBS, PRODUCTS, SUMS = range(4)
COPIES = (2, 2, 2, 1)  #: of each, so that stages do not wait for each other
#: For the estimate, by whether cores are split: cycles per vector repeat of scores, exposed cycles
#: per task, cycles until the stages are full. Fitted to what the machine makes of 16 to 512 rows.
REPEAT, EXPOSED, FILL = (27.0, 22.0), (700.0, 1900.0), (1000.0, 3400.0)
CUBE, VECTOR = 0, 1  #: numbers of the block's cores; VECTOR + 1 is the second vector core
#: Events between the cores; a vector core's own start at `event + its number`.
READY, DONE, PRODUCT = 0, 10, 20


@dataclass(frozen=True)
class Job:
    """A task: keys [column, column + columns) of a band.

    `index` counts the core's tasks, `turn` its bands; `tile`: scores in UB together.
    """

    band: Band
    column: int
    columns: int
    index: int
    turn: int
    tile: int

    @property
    def first(self) -> bool:
        """The band's first task."""
        return self.column == 0

    @property
    def last(self) -> bool:
        """The band's last task."""
        return self.column + self.columns >= self.band.columns

    @property
    def width(self) -> int:
        """Columns in whole blocks, as they lie in workspace."""
        return up(self.columns, 16)


def jobs(p: Problem, t: Tiling, block: int) -> list[Job]:
    """All tasks of a block, in order."""
    starts = band_starts(p.shape, t["s1"], t["cores"])
    out: list[Job] = []
    for turn, i in enumerate(range(starts[block], starts[block + 1])):
        b = band(p.shape, t["s1"], i)
        for column in range(0, b.columns, t["s2"]):
            columns = min(t["s2"], b.columns - column)
            out.append(Job(b, column, columns, len(out), turn, t["tile"]))
    return out


def half(rows: int, number: int) -> tuple[int, int]:
    """(first, count) of the rows of a band that vector core 0 or 1 takes."""
    first = -(-rows // 2)
    return (0, first) if number == 0 else (first, rows - first)


@dataclass(frozen=True)
class Workspace:
    """Where a block's intermediate results lie."""

    p: Problem
    base: int
    block: int
    s1: int
    s2: int

    def sizes(self) -> tuple[int, ...]:
        """Bytes per block of each operand."""
        scores = self.s1 * up(self.s2, 16)
        products = self.s1 * self.p.shape.d * 4
        each = (scores * 4, scores * self.p.dtype.itemsize, products, products)
        return tuple(n * c for n, c in zip(each, COPIES, strict=True))

    def region(self, kind: int, job: Job) -> Region:
        """(rows, columns) of a task's scores, probabilities, products, or the band's sums."""
        size = self.sizes()[kind]
        start = self.block * size + job.index % COPIES[kind] * (size // COPIES[kind])
        columns = job.width if kind in (SCORES, PROBS) else self.p.shape.d
        dtype = self.p.dtype if kind == PROBS else F32
        return Region.dense(GM, self.base + kind, start, (job.band.rows, columns), dtype)


def _workspace(args: KernelArgs, t: Tiling, block: int) -> Workspace:
    return Workspace(problem(args, MASK, BIAS), len(args.operands), block, t["s1"], t["s2"])


@kernel("FlashAttentionScore")
class FlashAttentionScore(TileKernel):
    """Fused attention: MIX where cores are split, else in one core."""

    core_type = "MIX"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """ND operands in a float type of the cube, fp32 on split cores only; heads of up to 128."""
        if args.op_type != "FlashAttentionScore" or args.epilogue:
            return f"operator {args.op_type}, or an epilogue"
        return refuse_attention(args, chip, MASK, BIAS, wide=chip.cores.split)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """CANN's: whole bands and tasks, less where rows are shorter or a buffer holds no more.

        Rows of at most one task have a template of their own (s1_bn2gs1): there smaller bands keep
        cores from idling; long rows keep theirs, as one head of 8192 on 910B2 shows.
        """
        p = problem(args, MASK, BIAS)
        a, cores = p.shape, chip.cores.count
        if not chip.cores.split:
            yield from unified.tilings(args, p, chip)
            return
        few = a.s2 <= TASK and a.batch * a.heads * -(-a.s1 // BAND) < 2 * cores
        found = False
        for s1 in (*BANDS, *SMALL_BANDS):
            if found and (not few or s1 not in BANDS or s1 >= a.s1):
                continue
            tile = _tiling(args, chip, min(s1, up(a.s1, 16)))
            if tile is not None:
                found = True
                yield {**tile, "cores": cores}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """The vector cores' time on the fullest block, by REPEAT, EXPOSED and FILL; in fp32 the
        cube's may be longer."""
        a, split = problem(args, MASK).shape, chip.cores.split
        outer = -(-a.s1 // tiling["s1"])
        turns = -(-a.batch * a.heads * outer // tiling["cores"])
        columns = min(a.s2, a.s2 / 2 + a.reach)
        scores = a.s1 / outer * columns / (2 if split else 1)
        tasks = max(1.0, columns / tiling["s2"])
        vector = scores / LINE * REPEAT[split]
        step = chip.core.cube.k[args.operands[0].dtype.value]
        cube = 2 * a.s1 / outer * columns / (chip.core.cube.m * chip.core.cube.n) * a.d / step
        return FILL[split] + turns * (tasks * EXPOSED[split] + max(vector, cube))

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Bytes task by task; blocks are alike when their tasks are."""
        p = problem(args, MASK, BIAS)
        if not chip.cores.split:
            return unified.plan(args, p, tiling)
        blocks = len(band_starts(p.shape, tiling["s1"], tiling["cores"])) - 1
        moved = [0] * (len(args.operands) + len(COPIES))  # an absent operand's stays 0
        keys = []
        for block in range(blocks):
            mine = jobs(p, tiling, block)
            keys.append(tuple((j.band.rows, j.column, j.columns, _masked(p, j)) for j in mine))
            for j in mine:
                for i, n in _traffic(args, p, j).items():
                    moved[i] += n
        traffic = {}
        for i, total in enumerate(moved):
            if total:
                own = i < len(args.operands)
                size = p.distinct(i, args.operands[i].nbytes) if own else 0
                traffic[i] = Traffic(min(size, total), total)
        sizes = _workspace(args, tiling, 0).sizes()
        workspace = tuple(blocks * n for n in sizes)
        return Plan(tiling, blocks, traffic, group_blocks(keys), workspace)

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
        if not chip.cores.split:
            return [Member(*cls.launch(args, chip, plan.tiling, block, functional))]
        p = problem(args, MASK, BIAS)
        mine = jobs(p, plan.tiling, block)
        alike = not functional and all(_alike(p, j) for j in mine)
        workspace = _workspace(args, plan.tiling, block)
        vectors = 1 if alike else 2
        k = Kernel(chip, args, block, functional)
        out = [Member(k, _cube(k, p, mine, workspace, vectors))]
        for number in range(vectors):
            k = Kernel(chip, args, block, functional, CALL)
            program = _vector(k, p, mine, workspace, number, plan.tiling["tile"])
            out.append(Member(k, program, 2 // vectors))
        return out

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        """The program of a core that is cube and vector core in one."""
        return unified.body(k, args, problem(args, MASK, BIAS), tiling, block)


def _tiling(args: KernelArgs, chip: ChipSpec, s1: int) -> dict[str, int] | None:
    """Bands of s1 rows with the largest tiles that UB holds; None: a buffer is too small."""
    p = problem(args, MASK, BIAS)
    if not fits(chip, args, lambda k: ScoresAndValues(k, p.dtype, p.shape.d, s1)):
        return None
    for tile in TILES:
        if fits(chip, args, lambda k, tile=tile: _vector_buffers(k, p, s1, tile)):  # type: ignore[misc]
            row = tile // 2 if p.bias >= 0 else tile  # a bias lies in UB half a tile at a time
            return {"s1": s1, "s2": min(TASK, up(p.shape.s2, 16), row), "tile": tile}
    return None


def _vector_buffers(k: Kernel, p: Problem, s1: int, tile: int) -> tuple[Softmax, Accumulate]:
    """What a vector core has in UB."""
    softmax = Softmax(k, p, half(s1, 0)[1], tile)
    return softmax, Accumulate(k, p, softmax.stats, tile)


def _masks(p: Problem, j: Job, number: int) -> list[Region | None]:
    """Masks of the tiles of a vector core's rows."""
    first, rows = half(j.band.rows, number)
    step = tile_rows(up(j.columns, LINE), max(1, rows), j.tile)
    return [
        p.mask_tile(
            j.band.batch, j.band.head, j.band.row + row, min(step, first + rows - row),
            j.column, j.columns,
        )
        for row in range(first, first + rows, step)
    ]  # fmt: skip


def _biases(p: Problem, j: Job, number: int) -> list[Region]:
    """Biases of the tiles of a vector core's rows; none where nothing is added."""
    if p.bias < 0:
        return []
    first, rows = half(j.band.rows, number)
    step = tile_rows(up(j.columns, LINE), max(1, rows), j.tile)
    return [
        p.bias_tile(
            j.band.batch, j.band.head, j.band.row + row, min(step, first + rows - row),
            j.column, j.columns,
        )
        for row in range(first, first + rows, step)
    ]  # fmt: skip


@lru_cache(maxsize=4096)
def _masked(p: Problem, j: Job) -> tuple[tuple[bool, ...], ...]:
    """Which tiles of a task need a mask, per vector core."""
    return tuple(tuple(m is not None for m in _masks(p, j, number)) for number in (0, 1))


def _alike(p: Problem, j: Job) -> bool:
    """True when both vector cores do the same in a task."""
    first, second = _masked(p, j)
    return j.band.rows % 2 == 0 and first == second


def _traffic(args: KernelArgs, p: Problem, j: Job) -> dict[int, int]:
    """Operand → bytes that a task moves."""
    a, es, base = p.shape, p.dtype.itemsize, len(args.operands)
    rows, out = j.band.rows, len(args.inputs)
    products = rows * a.d * 4
    moved = {
        1: j.columns * a.d * es,
        2: j.columns * a.d * es,
        base + SCORES: 2 * rows * j.width * 4,
        base + PROBS: 2 * rows * j.width * es,
        base + PRODUCTS: 2 * products,
        base + SUMS: (products if not j.first else 0) + (products if not j.last else 0),
    }
    if p.mask >= 0:
        tiles = [m for number in (0, 1) for m in _masks(p, j, number) if m is not None]
        moved[p.mask] = sum(prod(m.shape) for m in tiles)
    if p.bias >= 0:
        added = [b for number in (0, 1) for b in _biases(p, j, number)]
        moved[p.bias] = sum(prod(b.shape) for b in added) * es
    if j.first:
        moved[0] = rows * a.d * es
    if j.last:
        moved[out] = moved[out + 1] = rows * STATS * 4
        moved[out + 2] = rows * a.d * es
    return moved


def _cube(
    k: Kernel, p: Problem, mine: list[Job], workspace: Workspace, vectors: int
) -> Iterator[Instr]:
    """Scores of a task, then products of the one before."""
    core = ScoresAndValues(k, p.dtype, p.shape.d, workspace.s1)
    for t in range(len(mine) + 1):
        if t < len(mine):
            j = mine[t]
            b = j.band
            if j.first:
                yield from core.load_queries(p.rows(0, b.batch, b.head, b.row, b.rows))
            keys = p.kv_rows(1, b.batch, b.head, j.column, j.columns)
            yield from core.scores(b.rows, keys, workspace.region(SCORES, j))
            if j.last:
                yield core.drop_queries()
            for v in range(vectors):
                yield signal(k, VECTOR + v, Pipe.FIXP, Pipe.MTE2, READY + v)
        if t:
            j = mine[t - 1]
            b = j.band
            for v in range(vectors):
                yield await_signal(k, Pipe.MTE3, Pipe.MTE2, DONE + v)
            values = p.kv_rows(2, b.batch, b.head, j.column, j.columns)
            probs, products = workspace.region(PROBS, j), workspace.region(PRODUCTS, j)
            yield from core.values(probs, values, products)
            for v in range(vectors):
                yield signal(k, VECTOR + v, Pipe.FIXP, Pipe.MTE2, PRODUCT + v)


def _vector(
    k: Kernel, p: Problem, mine: list[Job], workspace: Workspace, number: int, tile: int
) -> Iterator[Instr]:
    """Probabilities of a task, then sums of the one before."""
    softmax, sums = _vector_buffers(k, p, workspace.s1, tile)
    out = len(k.args.inputs)
    for t in range(len(mine) + 1):
        if t < len(mine):
            j = mine[t]
            b, (first, rows) = j.band, half(j.band.rows, number)
            part = slice(first, first + rows)
            yield await_signal(k, Pipe.FIXP, Pipe.MTE2, READY + number)
            if j.first:
                yield from sums.wait_sums(j.turn % 2)
            if rows:
                scores, probs = (workspace.region(kind, j)[part] for kind in (SCORES, PROBS))
                copies = (j.turn % 2, j.index % 2)
                hidden, added = _masks(p, j, number), _biases(p, j, number)
                yield from softmax.task(scores, probs, hidden, added, j.columns, j.first, copies)
                if j.last:
                    top = stat_rows(out, p, b.batch, b.head, b.row + first, rows)
                    yield from softmax.keep_top(rows, top)
            yield signal(k, CUBE, Pipe.MTE3, Pipe.MTE2, DONE + number)
        if t:
            j = mine[t - 1]
            b, (first, rows) = j.band, half(j.band.rows, number)
            part = slice(first, first + rows)
            yield await_signal(k, Pipe.FIXP, Pipe.MTE2, PRODUCT + number)
            if not rows:
                continue
            products, saved = (workspace.region(kind, j)[part] for kind in (PRODUCTS, SUMS))
            dst = p.rows(out + 2, b.batch, b.head, b.row + first, rows) if j.last else None
            copies = (j.turn % 2, j.index % 2)
            yield from sums.task(products, saved, j.first, dst, copies)
            if j.last:
                kept = stat_rows(out + 1, p, b.batch, b.head, b.row + first, rows)
                yield from sums.keep_sums(rows, j.turn % 2, kept)
