"""The plain roofline of a recorded operator: what replay has to be better than.

The larger of FLOPs at the cube's peak and operand bytes at HBM bandwidth, plus the launch. No
re-reads, no vector passes, no tiles. Vector work is not counted: its bytes bind it in a roofline.
"""

from __future__ import annotations

from math import prod

from npusim.chip.spec import ChipSpec
from npusim.frontends.recorded import RecordedOp, RecordedTensor


def roofline_us(op: RecordedOp, chip: ChipSpec) -> float:
    """Microseconds of an op on the chip's roofline, launch included."""
    nbytes = sum(t.nbytes for t in (*op.inputs, *op.outputs))
    seconds = nbytes / chip.hbm.bandwidth
    if flops := _flops(op):
        dtype = max(op.inputs, key=lambda t: t.size).dtype
        peak = chip.cube_flops(dtype) or chip.vector_flops(dtype)
        if "Conv" in op.op_type and dtype == "float32":
            peak = chip.cube_flops("hfloat32") or peak
        seconds = max(seconds, flops / peak)
    if not op.core_time_only:
        seconds += chip.scheduler.launch + chip.scheduler.per_block * op.block_dim
    return seconds * 1e6


def _flops(op: RecordedOp) -> int:
    """FLOPs of a matrix product or a convolution (channels padded to C0); 0 of all others."""
    if len(op.inputs) < 2 or not op.outputs:
        return 0
    if "MatMul" in op.op_type or op.op_type == "GEMM":
        return _product_flops(op.inputs[0], op.outputs[0])
    if "Conv2D" not in op.op_type:
        return 0
    weights = next((t for t in (*op.inputs, *op.outputs) if _is_filter(t)), None)
    if weights is None:
        return 0
    k1, co1, _, c0 = weights.shape
    if "Backprop" not in op.op_type:
        return 2 * op.outputs[0].size * k1 * c0
    like = [t for t in op.inputs if len(t.shape) == 5 and t.shape[1] * t.shape[4] == 16 * co1]
    if not like:
        return 0
    gradient = like[0] if "Input" in op.op_type else like[-1]  # dX: (dY, W); dW: (X, dY)
    return 2 * gradient.size * k1 * c0


def _is_filter(t: RecordedTensor) -> bool:
    """Weights as the device has them; tables do not name the format of a result."""
    return len(t.shape) == 4 and (t.format == "FRACTAL_Z" or t.shape[2] == 16)


def _product_flops(a: RecordedTensor, out: RecordedTensor) -> int:
    """2·M·N·K, with K what is left of A's matrix when the output's M (or N) rows are taken out."""
    (am, ak), (m, _) = _matrix(a), _matrix(out)
    k = am * ak // m if m else 0
    return 2 * out.size * k


def _matrix(t: RecordedTensor) -> tuple[int, int]:
    """Rows and columns of the innermost matrix."""
    s = t.shape
    if t.format == "FRACTAL_NZ" and len(s) >= 4:
        return s[-3] * s[-2], s[-4] * s[-1]
    return (s[-2], s[-1]) if len(s) > 1 else (1, prod(s))
