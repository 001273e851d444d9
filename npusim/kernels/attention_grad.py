"""FlashAttentionScoreGrad: dQ, dK, dV, the probabilities computed again from the rows' statistics.

CANN's MIX kernel of the 910B for long rows (`flash_attention_score_grad_s1s2_bn2gs1s2_sab`), in
three phases with all cores waiting in between (SyncAll):

    0  vector  sums of dY·Y per row; zeros where dQ, dK and dV are to be summed in fp32
    1  MIX     blocks of 512 × 512 scores, dealt to the cores in turn:
               cube    dP = dY·Vᵀ, S = Q·Kᵀ of block t           → workspace, fp32
               vector  P and dS = P·(dP - sum) of block t        → workspace, stored type
               cube    dQ += dS·K, dK += dSᵀ·Q, dV += Pᵀ·dY of block t - 1, atomic adds in GM
    2  vector  dQ and dK scaled, all three to the stored type

The workspace stays in L2. On chips whose cores do both, phase 1 runs in one core
(`attention_grad_unified`).

Tiling: s1, s2 of a block of scores; cores; unit: rows of a unit of phases 0 and 2. Where cores
are split, side: s1 and s2 for which the cube core has buffers; rows: of a vector core's tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

from npusim.chip.spec import ChipSpec
from npusim.kernels import attention_grad_unified as unified
from npusim.kernels.attention_grad_cube import Products, cube_program
from npusim.kernels.attention_grad_rows import UNITS, Rows, ends, row_bytes, row_units
from npusim.kernels.attention_grad_shape import (
    ATTENTION,
    COPIES,
    DY,
    MASK,
    SUMS,
    Block,
    Workspace,
    blocks_of,
    cube_bytes,
    halves,
)
from npusim.kernels.attention_grad_vector import (
    ROWS,
    Tiles,
    tile_masks,
    vector_bytes,
    vector_program,
)
from npusim.kernels.attention_shape import LINE, Problem, problem, refuse_attention, up
from npusim.kernels.attention_vector import CALL
from npusim.kernels.grid import Share, deal
from npusim.kernels.lang import Kernel, fits
from npusim.program.kernel import (
    KernelArgs,
    KernelDef,
    Member,
    Plan,
    Tiling,
    Traffic,
    group_blocks,
    kernel,
)

#: Rows and columns of a block of scores: CANN's s1CvInner, s2CvInner; less for smaller buffers.
SIDES = (512, 256, 128, 64, 32, 16)


@kernel("FlashAttentionScoreGrad")
class FlashAttentionScoreGrad(KernelDef):
    """Gradient of fused attention."""

    core_type = "MIX"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """As the forward kernel; dY and the forward's results are needed."""
        if args.op_type != "FlashAttentionScoreGrad" or args.epilogue:
            return f"operator {args.op_type}, or an epilogue"
        if len(args.inputs) != ATTENTION + 1 or args.inputs[DY] is None:
            return "dY, softmax_max, softmax_sum and attention_in are needed"
        return refuse_attention(args, chip, MASK)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """CANN's blocks, less where the rows are shorter or a buffer holds no more."""
        p = problem(args, MASK)
        unit = _unit(args, chip, p)
        if unit:
            found = _split_tilings if chip.cores.split else unified.tilings
            for tile in found(args, p, chip):
                yield {**tile, "cores": chip.cores.count, "unit": unit}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """The vector cores' time: 24 cycles per repeat of scores, 500 exposed per tile."""
        a = problem(args, MASK).shape
        visible = a.batch * a.heads * a.s1 * min(a.s2, a.s2 / 2 + a.reach) / chip.vector_cores()
        return visible / LINE * 24.0 + visible / (tiling["s1"] * tiling["s2"]) * 500

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Bytes block by block and row by row."""
        p = problem(args, MASK)
        found = blocks_of(p, tiling["s1"], tiling["s2"])
        count = min(tiling["cores"], max(len(found), 1))
        moved = [0] * (len(args.operands) + len(COPIES))
        rows, base = tiling.get("rows", 0), len(args.operands)
        for b in found:
            per_block = _moved(p, base, b, rows) if rows else unified.moved(p, base, b)
            for i, n in per_block.items():
                moved[i] += n
        for i, n in row_bytes(args, p).items():
            moved[i] += n
        keys = [_key(p, tiling, chip, found[i::count], count, i) for i in range(count)]
        traffic = {}
        for i, total in enumerate(moved):
            if total:
                own = i < len(args.operands)
                traffic[i] = Traffic(min(args.operands[i].nbytes, total) if own else 0, total)
        sizes = Workspace(p, len(args.operands), 0, tiling["s1"], tiling["s2"]).sizes()
        workspace = tuple(n if kind >= SUMS else count * n for kind, n in enumerate(sizes))
        return Plan(tiling, count, traffic, group_blocks(keys), workspace, phases=3)

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
        """Phase 1: the cube core, then its vector cores; else the vector cores."""
        p, t = problem(args, MASK), plan.tiling
        workspace = Workspace(p, len(args.operands), block, t["s1"], t["s2"])
        count = plan.block_dim
        if phase != 1:
            shares = _row_shares(p, t["unit"], chip, count, block)
            kinds = set(zip(map(_counts, shares), ends(p, shares, t["unit"]), strict=True))
            once = not functional and len(kinds) == 1
            out = []
            for share in shares[:1] if once else shares:
                k = Kernel(chip, args, block, functional)
                rows = Rows(k, p, workspace, phase, t["unit"])
                out.append(Member(k, rows.run(share), len(shares) if once else 1))
            return out
        mine = list(blocks_of(p, t["s1"], t["s2"]))[block::count]
        k = Kernel(chip, args, block, functional)
        if not chip.cores.split:
            return [Member(k, unified.program(k, p, mine, workspace))]
        alike = not functional and all(_alike(p, b, t["rows"]) for b in mine)
        vectors = 1 if alike else 2
        out = [Member(k, cube_program(k, p, mine, workspace, t["side"], vectors))]
        for number in range(vectors):
            k = Kernel(chip, args, block, functional, CALL)
            program = vector_program(k, p, mine, workspace, number, t["rows"])
            out.append(Member(k, program, 2 // vectors))
        return out


def _unit(args: KernelArgs, chip: ChipSpec, p: Problem) -> int:
    """Rows of a unit of phases 0 and 2; 0 when UB does not hold one."""
    w = Workspace(p, len(args.operands), 0, 16, 16)
    for unit in UNITS:
        builds = (partial(Rows, p=p, workspace=w, phase=phase, unit=unit) for phase in (0, 2))
        if fits(chip, args, *builds):
            return unit
    return 0


def _split_tilings(args: KernelArgs, p: Problem, chip: ChipSpec) -> Iterator[Tiling]:
    """The largest blocks that the cube core holds, the largest tiles that a vector core does."""
    w = Workspace(p, len(args.operands), 0, 16, 16)

    def largest(
        sizes: Sequence[int], build: Callable[[Kernel, Problem, Workspace, int], object]
    ) -> int:
        return next((n for n in sizes if fits(chip, args, lambda k, n=n: build(k, p, w, n))), 0)  # type: ignore[misc]

    side, rows = largest(SIDES, Products), largest(ROWS, Tiles)
    if side and rows:
        s1, s2 = min(side, up(p.shape.s1, 16)), min(side, up(p.shape.s2, 16))
        yield {"s1": s1, "s2": s2, "side": side, "rows": rows}


def _counts(share: list[Share]) -> tuple[int, ...]:
    return tuple(s.count for s in share)


def _row_shares(p: Problem, unit: int, chip: ChipSpec, count: int, block: int) -> list[list[Share]]:
    """The row units of a block's vector cores."""
    per = 2 if chip.cores.split else 1
    units = row_units(p, unit)
    return [deal(units, per * count, block * per + i) for i in range(per)]


@lru_cache(maxsize=4096)
def _alike(p: Problem, b: Block, rows: int) -> bool:
    """True when both vector cores do the same on a block, masks included."""
    first, second = halves(b.columns)
    if first[1] != second[1]:
        return False
    masks = [[m is not None for m in tile_masks(p, b, n, rows)] for n in (0, 1)]
    return masks[0] == masks[1]


def _moved(p: Problem, base: int, b: Block, rows: int) -> dict[int, int]:
    moved = cube_bytes(p, base, b)
    for number in (0, 1):
        for i, n in vector_bytes(p, base, b, number, rows).items():
            moved[i] = moved.get(i, 0) + n
    return moved


def _key(
    p: Problem, t: Tiling, chip: ChipSpec, mine: tuple[Block, ...], count: int, block: int
) -> object:
    """What a block's time depends on."""
    shares = _row_shares(p, t["unit"], chip, count, block)
    rows = t.get("rows", ROWS[0])
    work = tuple(
        (b.rows, b.columns, tuple(m is not None for n in (0, 1) for m in tile_masks(p, b, n, rows)))
        for b in mine
    )
    return work, tuple(map(_counts, shares)), ends(p, shares, t["unit"])
