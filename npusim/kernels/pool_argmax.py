"""MaxPoolWithArgmax and its gradient, first-generation style, on NC1HWC0, fp16.

After CANN's kernels (max_pool_with_argmax.py, max_pool_grad_with_argmax*.py), which share out
slices (n, c1), one at a time:

* `img2col` (argmax_forward): the band goes through load3d into UB, tap by tap; maxima and bits.
* `col2img` (argmax_backward): per tap a select by the mask, added back where the tap came from.
* `rows` (argmax_rows): what CANN has for the first pool of ResNet, by the size of its image: rows
  straight in UB, everything double-buffered.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.argmax_backward import Backward
from npusim.kernels.argmax_forward import Forward
from npusim.kernels.argmax_job import C0, OP_TYPES, Job
from npusim.kernels.argmax_rows import RowsBackward, RowsForward, by_rows
from npusim.kernels.grid import deal
from npusim.kernels.lang import Kernel, TileKernel
from npusim.kernels.rows import padded
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, Plan, Tiling, Traffic, group_blocks, kernel

Program = type[Forward] | type[Backward] | type[RowsForward] | type[RowsBackward]


def _program(job: Job) -> Program:
    """What runs a launch."""
    if by_rows(job):
        return RowsForward if job.forward else RowsBackward
    return Forward if job.forward else Backward


@kernel("PoolArgmax")
class PoolArgmax(TileKernel):
    """MaxPoolWithArgmax (x → y, mask), MaxPoolGradWithArgmax (x, dy, mask → dx), fp16."""

    core_type = "AIV"

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type not in OP_TYPES or args.epilogue:
            return f"no program for {args.op_type}"
        spec = args.operands[0]
        if spec.layout is not Layout.NC1HWC0 or spec.shape[1] % C0 or not spec.nbytes:
            return "takes NC1HWC0 with whole blocks of 16 channels"
        if spec.dtype is not DType.FLOAT16:
            return f"{args.op_type} of {spec.dtype.value}"
        if chip.cores.split:
            return "img2col into UB, which split cores do not have"
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Rows of outputs a band, bands a slice, blocks; `per` units (slices or bands) a block."""
        job = Job.of(args)
        rows = _program(job).rows(job, chip)
        if not rows:
            return
        bands = len(_program(job).bands(job, rows))
        cores = chip.vector_cores()
        tiling = {"rows": rows, "bands": bands, "loose": 0}
        if _program(job) is not Forward:
            yield tiling | {"blocks": min(job.slices, cores)}
            return
        # Bands whose masks fill whole 32 B blocks do not touch: they are shared out one by one.
        tiling["loose"] = int(bands > 1 and rows * job.window.out[1] % C0 == 0)
        units = job.slices * (bands if tiling["loose"] else 1)
        yield tiling | {"blocks": -(-units // -(-units // cores))}

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """There is one tiling; a figure for comparison with other kernels."""
        job = Job.of(args)
        slices = -(-job.slices // tiling["blocks"])
        return 30.0 * slices * job.window.out[0] * job.window.out[1] / C0 * job.window.taps

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        job, blocks = Job.of(args), tiling["blocks"]
        bands = _program(job).bands(job, tiling["rows"])
        loads = sum(b.loaded for b in bands) * job.slices
        across = job.window.out[1]
        if _program(job) is Backward:  # whole blocks of mask a row
            across = padded(across, C0)
        bits = sum(b.outputs for b in bands) * across * job.window.taps * 2 * job.slices
        if job.forward:
            x, y, mask = args.operands
            read = loads * job.window.size[1] * C0 * 2
            traffic = {
                0: Traffic(min(x.nbytes, read), read),
                1: Traffic(y.nbytes, y.nbytes),
                2: Traffic(min(mask.nbytes, bits), bits),
            }
        else:
            _, dy, mask, dx = args.operands
            read = loads * job.window.out[1] * C0 * 2
            traffic = {
                1: Traffic(min(dy.nbytes, read), read),
                2: Traffic(min(mask.nbytes, bits), bits),
                3: Traffic(dx.nbytes, dx.nbytes),
            }
        keys = [_units(job, tiling, b) for b in range(blocks)]
        return Plan(tiling, blocks, traffic, group_blocks([_key(u, tiling) for u in keys]))

    @staticmethod
    def body(k: Kernel, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Instr]:
        job = Job.of(args)
        program = _program(job)(k, args, job, tiling["rows"])
        bands = program.bands(job, tiling["rows"])
        start, count = _units(job, tiling, block)
        each = len(bands) if tiling["loose"] else 1
        steps = bands if each == 1 else bands[:1]
        yield from program.begin()
        for i in k.loop(count) if each == 1 else range(count):
            for j, _ in enumerate(steps):
                units = [divmod((start + i) * len(steps) + j + n, len(bands)) for n in (0, 1)]
                (s, b), (later, then) = units
                more = i + 1 < count or j + 1 < len(steps)
                yield from program.band(s, bands[b], (later, bands[then]) if more else None)


def _units(job: Job, tiling: Tiling, block: int) -> tuple[int, int]:
    """(first, count) of a block's slices, or of its (slice, band) pairs."""
    if not job.forward or by_rows(job):
        share = deal([job.slices], tiling["blocks"], block)[0]
        return share.start, share.count
    units = job.slices * (tiling["bands"] if tiling["loose"] else 1)
    per = -(-units // tiling["blocks"])
    return block * per, min(per, units - block * per)


def _key(units: tuple[int, int], tiling: Tiling) -> tuple[int, int]:
    start, count = units
    return (start % tiling["bands"] if tiling["loose"] else 0, count)
