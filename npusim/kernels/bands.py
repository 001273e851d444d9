"""Windows over NC1HWC0 images on the vector unit: what Pool and DepthwiseConv share.

An image slice is one (n, c1): H × W × C0. A tile holds the input that `rows` × `cols` outputs of
`batch` slices read, padding included; the padding is written by the vector unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.kernels.lang import Kernel
from npusim.ops.window import WINDOW_ATTRS, Window
from npusim.program.isa import Instr
from npusim.program.kernel import KernelArgs, OperandSpec
from npusim.program.region import Region

UB_SHARE = 0.75  #: of UB that tiles may use


@lru_cache(maxsize=256)
def window_of(args: KernelArgs, kernel: tuple[int, ...]) -> Window:
    """The window of a launch over its first input."""
    attrs = {**WINDOW_ATTRS, "ceil_mode": 0, **dict(args.attrs)}
    return Window.of(args.operands[0].shape[2:], kernel, attrs)


@dataclass(frozen=True)
class Span:
    """A run of outputs along one axis and the input it reads.

    Attributes:
        start, count: outputs.
        first: first input element that exists; valid: how many.
        before, after: padding elements around them.
    """

    start: int
    count: int
    first: int
    valid: int
    before: int
    after: int

    @property
    def need(self) -> int:
        """Input elements, padding included."""
        return self.before + self.valid + self.after


def reach(window: Window, axis: int, count: int) -> int:
    """Input elements that `count` outputs read along an axis."""
    last_tap = (window.kernel[axis] - 1) * window.dilations[axis]
    return (count - 1) * window.strides[axis] + last_tap + 1


def spans(window: Window, axis: int, size: int) -> list[Span]:
    """The outputs of an axis in runs of `size`."""
    out, extent = [], window.size[axis]
    for start in range(0, window.out[axis], size):
        count = min(size, window.out[axis] - start)
        low = start * window.strides[axis] - window.begin[axis]
        high = low + reach(window, axis, count)
        first, last = min(max(0, low), extent), max(0, min(extent, high))
        before, valid = min(first, high) - low, last - first
        out.append(Span(start, count, first, valid, before, high - low - before - valid))
    return out


def tap(x: Region, window: Window, i: int, j: int, rows: int, cols: int) -> Region:
    """What tap (i, j) sees of a tile x (batch, rows in, cols in, C0)."""
    batch, _, _, c0 = x.shape
    sb, sh, sw, sc = x.strides
    offset = x.offset + i * window.dilations[0] * sh + j * window.dilations[1] * sw
    strides = (sb, sh * window.strides[0], sw * window.strides[1], sc)
    return Region(x.space, x.operand, offset, (batch, rows, cols, c0), strides, x.dtype)


def fill_padding(k: Kernel, x: Region, h: Span, w: Span, value: float) -> Iterator[Instr]:
    """Write the padding of a tile x (batch, rows in, cols in, C0)."""
    top, bottom = h.before, h.before + h.valid
    if top:
        yield k.vec("dup", x[:, :top], scalar=value)
    if h.after:
        yield k.vec("dup", x[:, bottom:], scalar=value)
    if w.before and h.valid:
        yield k.vec("dup", x[:, top:bottom, : w.before], scalar=value)
    if w.after and h.valid:
        yield k.vec("dup", x[:, top:bottom, w.before + w.valid :], scalar=value)


def inside(x: Region, h: Span, w: Span) -> Region:
    """The part of a tile that exists in the image."""
    return x[:, h.before : h.before + h.valid, w.before : w.before + w.valid]


def row_cycles(chip: ChipSpec, per: float, window: Window, cols: int, itemsize: int) -> float:
    """Cycles of one vector pass over one output row of `cols` positions of C0 = 16 channels."""
    lanes = chip.core.vector.repeat_bytes // itemsize
    repeats = -(-cols * 16 // lanes) if window.strides[1] == 1 else cols * -(-16 // lanes)
    return repeats * per


def refuse_image(spec: OperandSpec, chip: ChipSpec) -> str:
    """Why an image cannot be worked on in UB: layout or type."""
    if spec.layout is not Layout.NC1HWC0:
        return f"layout {spec.layout.value}: NC1HWC0 only"
    if spec.dtype is DType.BFLOAT16:
        return "" if "bfloat16" in chip.core.cube.k else "no bfloat16"
    if spec.dtype not in (DType.FLOAT16, DType.FLOAT32):
        return f"element type {spec.dtype.value}"
    has = spec.dtype.value in chip.core.vector.dtypes
    return "" if has else f"no {spec.dtype.value} on the vector unit"
