"""Batch normalisation in training, as CANN's kernels do it: slice by slice, in fp32.

A slice is H·W·16 contiguous elements that share 16 channels. Each pass over a tile is one vector
instruction (two when the tile does not end on a repeat), with a barrier between passes. Passes
per operator, conversions included: Reduce 4, Update 4 (+ ReLU 1 and compare to the mask 1,
+ Add 1), UpdateGrad 7, ReduceGrad 7. Sums leave by atomic add: their outputs must have been
cleared before. `batchnorm_grid` cuts the work, `batchnorm_programs` holds the passes.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.batchnorm_grid import C0, Job, cut_blocks, cut_tile
from npusim.kernels.batchnorm_programs import FUSED, PROGRAMS, SUMS
from npusim.kernels.elementwise import unsupported_type
from npusim.kernels.lang import Kernel, TileKernel
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel

#: Vector passes over the data.
PASSES = {
    "BNTrainingReduce": 4,
    "BNTrainingUpdate": 4,
    "FusionOp_BNTrainingUpdate_ReLUV2": 6,
    "FusionOp_BNTrainingUpdate_Add_ReLUV2": 7,
    "BNTrainingUpdateGrad": 7,
    "BNTrainingReduceGrad": 7,
}
#: Operand indices (inputs, then outputs) of the whole-size tensors, the mask apart.
IMAGES = {
    "BNTrainingReduce": (0,),
    "BNTrainingUpdate": (0, 7),
    "FusionOp_BNTrainingUpdate_ReLUV2": (0, 11),
    "FusionOp_BNTrainingUpdate_Add_ReLUV2": (0, 7, 12),
    "BNTrainingUpdateGrad": (0, 1),
    "BNTrainingReduceGrad": (0, 1, 7),
}
#: UB bytes per element that CANN's schedules reckon with, by bytes of an image's element
#: (their `total_width`, times two bytes, times two where they double-buffer).
RECKONED = {
    "BNTrainingReduceGrad": {2: 26, 4: 36},
    "BNTrainingUpdateGrad": {2: 18, 4: 20},
    "BNTrainingReduce": {2: 18, 4: 20},
}
RECKONED_UPDATE = {2: 12, 4: 24}
SPARE = 1024  #: UB bytes left for the spread channel vectors


def _limit(args: KernelArgs, chip: ChipSpec, room: int) -> int:
    """Elements of a tile: as many as CANN's schedule takes, and as `room` bytes of UB hold.

    A tile needs slots of each image (one for Update's output), fp32 temporaries, the mask. Where
    CANN's count is less than one row of the image, it is what UB holds.
    """
    op, inputs = args.op_type, len(args.inputs)
    update = op not in RECKONED
    slots = 0
    for i in IMAGES[op]:
        slots += (2 if i < inputs else 1 if update else 2) * args.operands[i].dtype.size
    own = slots + (4 if update else 8) + (0.125 if op in FUSED else 0)
    reckoned = RECKONED.get(op, RECKONED_UPDATE)[args.operands[0].dtype.size]
    holds, counts = int(room / own), int(chip.core.ub.size / reckoned)
    row = args.operands[0].storage_shape[3] * C0
    return holds if counts < row else min(holds, counts)


def _channel_bytes(args: KernelArgs) -> int:
    """UB bytes per channel block of the values per channel."""
    program = PROGRAMS[args.op_type]
    return (program.vectors + len(args.inputs) + len(args.outputs)) * C0 * 4


@kernel("BatchNorm")
class BatchNorm(TileKernel):
    """BNTrainingReduce, -Update (fused forms too), -UpdateGrad, -ReduceGrad on NC1HWC0."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        spec = args.inputs[0]
        if args.op_type not in PASSES or spec is None or args.epilogue:
            return f"no vector program for {args.op_type}"
        if spec.layout is not Layout.NC1HWC0 or spec.shape[1] % C0 or not spec.nbytes:
            return "takes NC1HWC0 with whole blocks of 16 channels"
        if spec.dtype not in (DType.FLOAT16, DType.FLOAT32):
            return f"{args.op_type} of {spec.dtype.value}"
        return unsupported_type(spec.dtype, chip)

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """One: CANN's."""
        n, c1, h, w, _ = args.operands[0].storage_shape
        sums = args.op_type in SUMS
        per_n, per_c, per_h = cut_blocks(n, c1, h, chip.vector_cores(), sums)
        room = chip.core.ub.size - per_c * _channel_bytes(args) - 4 * SPARE
        rows, group = cut_tile(per_h, w, per_c, _limit(args, chip, room), not sums)
        if rows:
            tiling = {"per_n": per_n, "per_c": per_c, "per_h": per_h, "rows": rows, "group": group}
            yield {**tiling, "blocks": len(Job.of(args, tiling).boxes())}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling: its passes."""
        slices = tiling["per_n"] * tiling["per_c"]
        rows = tiling["per_h"] * args.operands[0].storage_shape[3]
        return slices * PASSES[args.op_type] * (rows * C0 / 64 + chip.core.vector.tail)

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job = Job.of(args, tiling)
        boxes = job.boxes()
        images, sums = IMAGES[args.op_type], args.op_type in SUMS
        channels = sum(b.channels for b in boxes) * C0 * 4
        traffic = {}
        for i, o in enumerate(args.operands):
            shared = i not in images and (i < len(args.inputs) or sums)
            traffic[i] = Traffic(o.nbytes, channels if shared else o.nbytes)
        first = [b.n0 == 0 and b.h0 == 0 for b in boxes]
        keys = [(b.images, b.channels, b.h1 - b.h0, f) for b, f in zip(boxes, first, strict=True)]
        return Plan(tiling, len(boxes), traffic, group_blocks(keys))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = Job.of(args, tiling)
        box = job.boxes()[block]
        work = PROGRAMS[args.op_type](k, args, job, box)
        yield from work.begin()
        groups = job.groups(box)
        count = box.images * len(groups)
        for i in k.loop(count) if job.even(box) else range(count):
            # sums walk the images of a channel block, the rest the channel blocks of an image
            n, g = (i % box.images, i // box.images) if work.by_channel else divmod(i, len(groups))
            yield from work.slices(box.n0 + n, *groups[g])
        yield from work.end()
