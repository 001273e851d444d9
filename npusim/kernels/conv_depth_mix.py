"""ConvConvEpilogue: two convolutions in one kernel, and steps that FIXP lacks, on both cores.

ConvConv's program on the cube core, whose tiles of the second convolution go to the workspace, and
the steps on its vector cores, tile by tile (see `cube_vector`). Tiling: ConvConv's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.chip.spec import ChipSpec
from npusim.kernels import conv_depth_tiling as cd
from npusim.kernels import cube_vector as cv
from npusim.kernels import epilogue_costs as costs
from npusim.kernels.conv_depth import Block, ConvConv
from npusim.kernels.conv_epilogue import SLACK, Conv2DEpilogue
from npusim.kernels.lang import Kernel
from npusim.program.kernel import KernelArgs, Plan, Tiling, kernel


def _plain(args: KernelArgs) -> KernelArgs:
    """The launch without its steps and their operands."""
    return replace(args, inputs=args.inputs[:5], epilogue=())


@kernel("ConvConvEpilogue")
class ConvConvEpilogue(cv.BothCores, ConvConv):
    """Two convolutions on cube cores, further steps on vector cores."""

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """What ConvConv refuses without the steps, and Conv2DEpilogue of the second with them."""
        reason = ConvConv.refuse(_plain(args), chip)
        return reason or Conv2DEpilogue.refuse(cd.second_of(args), chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """ConvConv's."""
        return cd.tilings(cd.pair_of(_plain(args)), chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """ConvConv's, with the vector cores beside the cube; the last tile's steps follow."""
        block_dim = tiling["bb"] * tiling["bm"]
        launch = chip.cycles(chip.scheduler.per_block) * block_dim
        body = cd.estimate(cd.pair_of(_plain(args)), chip, tiling) - launch
        mine = ConvConvEpilogue.tiles(args, tiling, 0)
        steps, last = cv.steps_cycles(args, chip, mine, block_dim)
        need = cv.demand(args)
        shared = max(need.through_l2 / chip.l2_rate, need.others / chip.hbm_rate)
        busy = max(body, steps, shared) + SLACK * min(body, steps)
        return busy + last + 2 * costs.load_latency(chip) + launch

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """ConvConv's, and the workspace."""
        plan = cd.plan(cd.pair_of(_plain(args)), args, tiling)
        return ConvConvEpilogue.with_workspace(plan, args)

    @staticmethod
    def tiles(args: KernelArgs, tiling: Tiling, block: int) -> cv.Tiles:
        """Of a share, in the order in which ConvConv makes them."""
        p = cd.pair_of(_plain(args))
        share = replace(p.share(tiling, block), n0=0, n=p.second.co)
        result = cv.Result(p.second.m, p.second.co, by_rows=False)
        return cv.Tiles(result, share, tiling["m0"] * 16, tiling["n0"] * 16, (0, 1, 2))

    @staticmethod
    def cube(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> cv.CubeProgram:
        """ConvConv's program without the steps."""
        return _CubeBlock(k, cd.pair_of(_plain(args)), tiling, block)


class _CubeBlock(Block):
    """The cube core's program: ConvConv's, whose tiles go to the workspace."""

    output = cv.ToWorkspace
