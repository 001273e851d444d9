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
from npusim.kernels import epilogue_costs as costs
from npusim.kernels.conv import Conv2D, ConvBody, conv_plan
from npusim.kernels.conv_tiling import (
    block_cycles,
    by_rows,
    conv_problem,
    hbm_cycles,
)
from npusim.kernels.cube_tiling import share
from npusim.kernels.lang import Kernel
from npusim.ops import compute_node
from npusim.program.kernel import KernelArgs, Plan, Tiling, kernel

#: Of the cores' own time, added to the longest: it parts tilings that L2 or HBM makes equal.
SLACK = 0.15


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
class Conv2DEpilogue(cv.BothCores, Conv2D):
    """Convolution on cube cores, further steps on vector cores."""

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
        block, mine = block_cycles(p, chip, tiling), Conv2DEpilogue.tiles(args, tiling, 0)
        steps, last = cv.steps_cycles(args, chip, mine, block_dim)
        need = cv.demand(args)
        through_l2 = (block_dim * block.moved + need.through_l2) / chip.l2_rate
        hbm = hbm_cycles(p, chip, tiling, need.others)
        busy = max(block.body, steps, through_l2, hbm)
        busy += SLACK * (block.body + steps) + block.exposed + last + 2 * costs.load_latency(chip)
        return by_rows(p, tiling, busy + chip.cycles(chip.scheduler.per_block) * block_dim)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Conv2D's, and the workspace."""
        plan = conv_plan(conv_problem(args), args, tiling)
        return Conv2DEpilogue.with_workspace(plan, args)

    @staticmethod
    def tiles(args: KernelArgs, tiling: Tiling, block: int) -> cv.Tiles:
        """Of a share, in the order in which Conv2D makes them."""
        p, m0, n0 = conv_problem(args), tiling["m0"] * 16, tiling["n0"] * 16
        order = (2, 0, 1) if tiling["resident"] == 2 else (0, 1, 2)
        result = cv.Result(p.m, p.co, by_rows=False)
        return cv.Tiles(result, share(p, tiling, block), m0, n0, order, tiling["images"])

    @staticmethod
    def cube(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> cv.CubeProgram:
        """Conv2D's program without the steps."""
        p = conv_problem(args)
        p = replace(p, spec=replace(p.spec, steps=()))
        return _CubeBody(k, p, tiling, share(p, tiling, block))


class _CubeBody(ConvBody):
    """The cube core's program: Conv2D's, whose tiles go to the workspace."""

    output = cv.ToWorkspace
