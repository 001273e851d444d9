"""Resizing to nearest neighbours by whole factors, in NC1HWC0."""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.program.kernel import KernelArgs, OperandSpec


def _factors(small: RecordedTensor, large: RecordedTensor) -> tuple[int, int]:
    """How often a row and a column of the small image stand in the large one.

    Raises:
        ValueError: not NC1HWC0, or no whole factors.
    """
    if len(small.shape) != 5 or len(large.shape) != 5:
        raise ValueError(f"images of {small.format} {small.shape} and {large.shape}")
    (h, w), (oh, ow) = small.shape[2:4], large.shape[2:4]
    if oh % h or ow % w:
        raise ValueError(f"{small.shape[2:4]} to {large.shape[2:4]}: not a whole factor")
    return oh // h, ow // w


def _images(small: RecordedTensor, large: RecordedTensor) -> tuple[OperandSpec, OperandSpec]:
    """(N·C1·H, 1, W, 1, C0) against (N·C1·H, fh, W, fw, C0): the bytes as they lie in GM."""
    fh, fw = _factors(small, large)
    n, c1, h, w, c0 = small.shape
    kind = operand(small).dtype
    one = OperandSpec((n * c1 * h, 1, w, 1, c0), kind)
    return one, OperandSpec((n * c1 * h, fh, w, fw, c0), kind)


@replays("ResizeNearestNeighborV2", "ResizeNearestNeighborV2D", "ResizeNearestNeighbor")
def resize(op: RecordedOp) -> Launch:
    """Every pixel repeated along rows and columns."""
    one, many = _images(op.inputs[0], op.outputs[0])
    return Launch("Move", KernelArgs("Tile", (one,), (many,)))
