"""MatMulEpilogue: a matrix product, and elementwise steps that FIXP lacks, on both kinds of core.

Where cube and vector cores are apart (910B) a result leaves L0C through FIXP, which adds a bias and
does ReLU. Other activations need the vector cores. As CANN's FFN (Atlas A2, 16-bit types: product,
workspace, activation), this MIX kernel lets both work at once, tile by tile (see `cube_vector`).
Tiling: MatMul's.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.chip.spec import ChipSpec
from npusim.ir import Layout
from npusim.kernels import cube_vector as cv
from npusim.kernels import epilogue as ep
from npusim.kernels import epilogue_costs as costs
from npusim.kernels.cube_tiling import share
from npusim.kernels.lang import Kernel
from npusim.kernels.matmul import Body, MatMul
from npusim.kernels.matmul_tiling import matmul_estimate, problem
from npusim.program.kernel import KernelArgs, Plan, Tiling, kernel


@kernel("MatMulEpilogue")
class MatMulEpilogue(cv.BothCores, MatMul):
    """Batched matrix product on cube cores, further steps on vector cores."""

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """16-bit results in ND; steps of one operand that the vector unit has."""
        reason = MatMul.refuse(replace(args, epilogue=()), chip)
        if reason:
            return reason
        out = args.outputs[0]
        if out.dtype.size != 2 or not out.dtype.is_float or out.layout is not Layout.ND:
            return f"results in float16 or bfloat16 and ND, not {out.dtype.value}"
        for step in args.epilogue:
            if step.operand is not None:
                return f"epilogue {step.op_type} with an operand"
        return cv.refuse_steps(args, chip)

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """MatMul's, or the vector cores' if they take longer; the last tile's steps follow."""
        p = problem(args)
        s = share(p, tiling, 0)
        rows, columns = min(s.m, tiling["m0"] * 16), min(s.n, tiling["n0"] * 16)
        last = cv.vector_cycles(args, chip, rows * columns / cv.VECTORS)
        steps = cv.vector_cycles(args, chip, s.batches * s.m * s.n / cv.VECTORS)
        product = matmul_estimate(p, chip, tiling)
        launch = chip.cycles(chip.scheduler.per_block) * tiling["bb"] * tiling["bm"] * tiling["bn"]
        return max(product, steps + launch) + last + 2 * costs.load_latency(chip)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """MatMul's, and the workspace, which is written and read."""
        return MatMulEpilogue.with_workspace(MatMul.plan(args, chip, tiling), args)

    @staticmethod
    def tiles(args: KernelArgs, tiling: Tiling, block: int) -> cv.Tiles:
        """Of a share, in the order in which MatMul makes them."""
        p, m0, n0 = problem(args), tiling["m0"] * 16, tiling["n0"] * 16
        order = (0, 2, 1) if tiling["resident"] == 2 else (0, 1, 2)
        result = cv.Result(p.m, p.n, by_rows=True)
        return cv.Tiles(result, share(p, tiling, block), m0, n0, order)

    @staticmethod
    def cube(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> cv.CubeProgram:
        """MatMul's program without the steps."""
        p = problem(args)
        p = replace(p, spec=replace(p.spec, steps=()))
        return _CubeBody(k, p, tiling, share(p, tiling, block))


class _CubeBody(Body):
    """The cube core's program: MatMul's, whose tiles go to the workspace."""

    def output(self) -> ep.CubeOutput:
        """The way to the workspace."""
        p, t, s = self.p, self.t, self.s
        return cv.ToWorkspace(self.k, p.spec, p.out, (t["m0"], t["n0"]), (s.n0, s.n))
