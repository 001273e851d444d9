"""Conv2DEpilogue: a convolution, and elementwise steps that FIXP lacks, on both kinds of core.

Where cube and vector cores are apart (910B) a result leaves L0C through FIXP, which adds a bias and
does ReLU. A residual, a Clip or another activation needs the vector cores: this MIX kernel lets
both kinds work at once, tile by tile (see `cube_vector`). Tiling: Conv2D's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import Node, TensorType
from npusim.ir.layout import c0_of
from npusim.kernels import cube_vector as cv
from npusim.kernels import epilogue as ep
from npusim.kernels.conv import Conv2D, ConvBody, conv_plan
from npusim.kernels.conv_tiling import (
    ConvProblem,
    block_cycles,
    by_rows,
    conv_problem,
    hbm_cycles,
)
from npusim.kernels.cube_tiling import Share, share
from npusim.ops import compute_node
from npusim.program.kernel import KernelArgs, Member, Plan, Tiling, kernel

SLACK = 0.15  #: of the cores' own time that does not overlap with the memory's


def tiles(p: ConvProblem, t: Tiling, s: Share) -> cv.Tiles:
    """The tiles of a share, in the order in which Conv2D makes them."""
    order = (2, 0, 1) if t["resident"] == 2 else (0, 1, 2)
    return cv.Tiles(cv.Result(p.m, p.co, by_rows=False), s, t["m0"] * 16, t["n0"] * 16, order)


@lru_cache(maxsize=256)
def _padding_stays_finite(args: KernelArgs) -> bool:
    """Whether the steps make finite numbers of the zeros that fill the last block of channels.

    What a convolution reads there it multiplies by zero. Operands may hold other small numbers.
    """
    out = args.outputs[0]
    others = sorted({s.operand for s in args.epilogue if s.operand is not None})
    if out.shape[1] % c0_of(out.dtype) == 0:
        return True
    one = TensorType((1,), out.dtype)
    for picks in product((0.0, 1.0, -1.0), repeat=len(others)):
        values = {0: 0.0, **dict(zip(others, picks, strict=True))}
        found: np.ndarray = np.zeros(1, out.dtype.np)
        for step in args.epilogue:
            attrs = dict(step.attrs)
            more = [attrs.pop("const1")] if "const1" in attrs else []
            more += [values[step.operand]] if step.operand is not None else []
            operands = [found, *(np.full(1, v, out.dtype.np) for v in more)]
            names = tuple(f"x{i}" for i in range(len(operands)))
            node = Node("step", step.op_type, names, ("y",), attrs)
            (found,) = compute_node(node, operands, [one])
        if not np.isfinite(found.astype(np.float32)).all():
            return False
    return True


@kernel("Conv2DEpilogue")
class Conv2DEpilogue(Conv2D):
    """Convolution on cube cores, further steps on vector cores."""

    core_type = "MIX"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """Results of the image's type; steps with constants or tensors that lie as the result."""
        out = args.outputs[0]
        reason = Conv2D.refuse(replace(args, epilogue=()), chip) or cv.refuse_steps(args, chip)
        if reason:
            return reason
        if out.dtype is not args.operands[0].dtype or not out.dtype.is_float:
            return f"results in {out.dtype.value}"
        if not _padding_stays_finite(args):
            return "padding of the last channels that is not finite"
        return "" if cv.room(args, chip) >= 16 else "UB does not hold the steps' operands"

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Conv2D's, with the vector cores beside the cube; the last tile's steps follow."""
        p, block_dim = conv_problem(args), tiling["bb"] * tiling["bm"] * tiling["bn"]
        block, mine = block_cycles(p, chip, tiling), tiles(p, tiling, p.first_share(tiling))
        steps, last = cv.steps_cycles(args, chip, mine, block_dim)
        need = cv.demand(args)
        through_l2 = (block_dim * block.moved + need.through_l2) / chip.l2_rate
        hbm = hbm_cycles(p, chip, tiling, need.others)
        busy = max(block.body, steps, through_l2, hbm)
        busy += SLACK * (block.body + steps) + block.exposed + last + 2 * ep.load_latency(chip)
        return by_rows(p, tiling, busy + chip.cycles(chip.scheduler.per_block) * block_dim)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Conv2D's, and the workspace."""
        p = conv_problem(args)
        plan = conv_plan(p, args, tiling)
        found = range(plan.block_dim)
        return cv.with_workspace(plan, args, [tiles(p, tiling, share(p, tiling, b)) for b in found])

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
        """See `cube_vector.block_members`."""
        p, t = conv_problem(args), plan.tiling
        s = share(p, t, block)
        on_cube = replace(p, spec=replace(p.spec, steps=()))
        return cv.block_members(
            chip, args, block, functional, tiles(p, t, s), lambda k: _CubeBody(k, on_cube, t, s)
        )


class _CubeBody(ConvBody):
    """The cube core's program: Conv2D's, whose tiles go to the workspace."""

    output = cv.ToWorkspace
