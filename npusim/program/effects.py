"""Tile-level semantics of instructions: what each does to the bytes in L1, L0 and UB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.errors import KernelError
from npusim.ir import DType, convert
from npusim.program.access import Access, adds, reads, writes
from npusim.program.isa import CoreMemory
from npusim.program.region import Region

Array = np.ndarray


@dataclass(slots=True)
class Copy:
    """Move regions; `zero` is filled with zeros first (the padding of ragged tiles)."""

    pairs: Sequence[tuple[Region, Region]]
    zero: Region | None = None

    def accesses(self) -> list[Access]:
        """Sources, padding, destinations."""
        filled = () if self.zero is None else (self.zero,)
        out = writes(*filled, *(dst for dst, _ in self.pairs))
        return [*reads(*(src for _, src in self.pairs)), *out]

    def read(self, memory: CoreMemory) -> list[Array]:
        """Copies of the sources, in the destinations' types (L0C leaves as fp16 on request)."""
        return [_cast(memory.view(src), dst.dtype) for dst, src in self.pairs]

    def write(self, memory: CoreMemory, values: list[Array]) -> None:
        """Store them."""
        if self.zero is not None:
            memory.view(self.zero)[...] = 0
        for (dst, _), v in zip(self.pairs, values, strict=True):
            memory.view(dst)[...] = v


def _cast(a: Array, dtype: np.dtype) -> Array:
    """`a` in the destination's type; a copy, for the source may change before the store."""
    return a.copy() if a.dtype == dtype else convert(a, DType.of(dtype))


@dataclass(slots=True)
class AtomicAdd:
    """Add a UB region into GM (fp32 or fp16 atomic add of MTE3)."""

    dst: Region
    src: Region

    def accesses(self) -> list[Access]:
        """The addend, and the sum."""
        return [*reads(self.src), *adds(self.dst)]

    def read(self, memory: CoreMemory) -> Array:
        """The addend."""
        return memory.view(self.src).copy()

    def write(self, memory: CoreMemory, values: Array) -> None:
        """Accumulate."""
        memory.view(self.dst)[...] += values


@dataclass(slots=True)
class ScatterAdd:
    """Add a UB row into the row of `table` (V, width) that `index` (1,) names."""

    table: Region
    src: Region
    index: Region

    def accesses(self) -> list[Access]:
        """Which row is known at run time only: any of the table."""
        return [*reads(self.index, self.src), *adds(self.table)]

    def read(self, memory: CoreMemory) -> tuple[int, Array]:
        """The index and the addend; an index out of range is an error of the program's input."""
        index = int(memory.view(self.index)[0])
        if not 0 <= index < self.table.shape[0]:
            raise KernelError(
                f"segment {index} of {self.table.shape[0]}",
                f"0 … {self.table.shape[0] - 1}",
                "correct the indices that the model is given",
            )
        return index, memory.view(self.src).copy()

    def write(self, memory: CoreMemory, values: tuple[int, Array]) -> None:
        """Accumulate."""
        memory.view(self.table)[values[0]] += values[1]


@dataclass(slots=True)
class GatherRows:
    """dst (outer, n, width) = the rows of table (outer, V, width) that indices (n) name.

    Negative indices count from the end, as in ONNX.
    """

    dst: Region
    table: Region
    indices: Region

    def accesses(self) -> list[Access]:
        """Which rows is known at run time only: all of the table."""
        return [*reads(self.indices, self.table), *writes(self.dst)]

    def read(self, memory: CoreMemory) -> Array:
        """The rows; an index out of range is an error of the program's input."""
        picks = memory.view(self.indices)
        size = self.table.shape[1]
        if ((picks < -size) | (picks >= size)).any():
            raise KernelError(
                f"Gather index {int(picks.min())} … {int(picks.max())} of {size} rows",
                f"{-size} … {size - 1}",
                "correct the indices that the model is given",
            )
        return memory.view(self.table)[:, np.where(picks < 0, picks + size, picks)]

    def write(self, memory: CoreMemory, values: Array) -> None:
        """Store them."""
        memory.view(self.dst)[...] = values


@dataclass(slots=True)
class Mmad:
    """C[m,n] (+)= A[m,k] · B[k,n] on fractals.

    a: (M1, K1, 16, K0) in L0A (zZ); b: (K1, N1, 16 n, K0) in L0B (nZ); c: (N1, M1, 16, 16) in
    L0C (NZ), float32 (or int32). fp16/bf16 products are exact in fp32; sums are fp32.
    """

    c: Region
    a: Region
    b: Region
    accumulate: bool

    def accesses(self) -> list[Access]:
        """Both operands, and the sums."""
        return [*reads(self.a, self.b), *(adds if self.accumulate else writes)(self.c)]

    def read(self, memory: CoreMemory) -> Array:
        """The product in C's fractal order."""
        m1, k1, m0, k0 = self.a.shape
        _, n1, n0, _ = self.b.shape
        # Sums of bytes are exact in fp64, which BLAS multiplies.
        acc: Any = np.float64 if self.c.dtype.kind == "i" else np.float32
        a = memory.view(self.a).transpose(0, 2, 1, 3).reshape(m1 * m0, k1 * k0).astype(acc)
        b = memory.view(self.b).transpose(0, 3, 1, 2).reshape(k1 * k0, n1 * n0).astype(acc)
        with np.errstate(invalid="ignore", over="ignore"):
            prod = a @ b
        return prod.reshape(m1, m0, n1, n0).transpose(2, 0, 1, 3)

    def write(self, memory: CoreMemory, values: Array) -> None:
        """Store or accumulate."""
        c = memory.view(self.c)
        if self.accumulate:
            c += values.astype(c.dtype)
        else:
            c[...] = values


@dataclass(frozen=True, slots=True)
class Window:
    """The img2col window of a load3d: kernel, stride, dilation, padding, input and output size.

    `spread_h`, `spread_w`: the window walks an image with spread-1 zeros between its pixels (the
    dilated gradient of a strided convolution); pads and positions count the zeros too.
    """

    kh: int
    kw: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_top: int
    pad_left: int
    height: int
    width: int
    out_width: int
    spread_h: int = 1
    spread_w: int = 1


@dataclass(slots=True)
class Load3d:
    """img2col from L1 (C1, rows, W, C0) into L0A (M1, K1, 16, C0) fractals.

    dst rows are output positions `first` … in row-major (ho, wo) order, `rows` of them valid;
    dst K blocks are `k_first` … in (C1, kh, kw) order. Row 0 of src is input row `top` (may be
    negative in the image's coordinates: padding). Positions outside the image read as
    `padding`.

    Where a block of src has fewer channels than dst has columns, a K block is the blocks of several
    taps, and what is left of the last one is padding too.
    """

    dst: Region
    src: Region
    window: Window
    first: int
    rows: int
    k_first: int
    top: int
    padding: float = 0.0

    def accesses(self) -> list[Access]:
        """The pixels between the first and the last that the windows need, and the fractals."""
        (c1, row, column), ok = self._pixels()
        if not ok.any():
            return writes(self.dst)
        c1 = np.broadcast_to(c1, ok.shape)
        first = [int(i[ok].min()) for i in (c1, row, column)]
        end = [int(i[ok].max()) + 1 for i in (c1, row, column)]
        if min(first) < 0 or any(n > size for n, size in zip(end, self.src.shape, strict=False)):
            raise KernelError(
                f"load3d of pixels {first} … {end} (C1, row, column) of a tile {self.src.shape}",
                "pixels that the tile holds",
                "load the rows that the window needs, or correct `top`",
            )
        if self.dst.shape[3] != self.src.shape[3]:  # pixels that share 32 B blocks: the whole tile
            return [*reads(self.src), *writes(self.dst)]
        box = tuple(slice(a, b) for a, b in zip(first, end, strict=True))
        return [*reads(self.src[box]), *writes(self.dst)]

    def _pixels(self) -> tuple[tuple[Array, Array, Array], Array]:
        """Index (c1, row, column) of every position and K block in src, and where it is valid."""
        w = self.window
        m1, k1, m0, columns = self.dst.shape
        many = columns // self.src.shape[3]
        pos = self.first + np.arange(m1 * m0)
        k = self.k_first * many + np.arange(k1 * many)
        c1, ki = k // (w.kh * w.kw), k % (w.kh * w.kw)
        ih = pos[:, None] // w.out_width * w.stride_h - w.pad_top
        ih = ih + (ki // w.kw * w.dilation_h)[None, :]
        iw = pos[:, None] % w.out_width * w.stride_w - w.pad_left
        iw = iw + (ki % w.kw * w.dilation_w)[None, :]
        ok = (ih % w.spread_h == 0) & (iw % w.spread_w == 0)
        ih, iw = ih // w.spread_h, iw // w.spread_w
        ok &= (ih >= 0) & (ih < w.height) & (iw >= 0) & (iw < w.width)
        ok &= (np.arange(m1 * m0) < self.rows)[:, None]
        if many > 1:
            ok &= (c1 < self.src.shape[0])[None, :]
            c1 = np.minimum(c1, self.src.shape[0] - 1)
        row = ih - self.top
        return (c1[None, :], np.where(ok, row, 0), np.where(ok, iw, 0)), ok

    def read(self, memory: CoreMemory) -> Array:
        """The gathered fractals."""
        m1, k1, m0, c0 = self.dst.shape
        src = memory.view(self.src)
        # A position that is valid but not in L1 is a kernel bug: let numpy raise on it.
        pixels, ok = self._pixels()
        out = src[pixels]
        out = np.where(ok[..., None], out, np.asarray(self.padding, out.dtype))
        return out.reshape(m1, m0, k1, c0).transpose(0, 2, 1, 3)

    def write(self, memory: CoreMemory, values: Array) -> None:
        """Store them."""
        memory.view(self.dst)[...] = values


def _is_half(a: Array) -> bool:
    """fp16 or bf16 (numpy sees ml_dtypes types as kind V)."""
    return a.dtype.itemsize == 2 and a.dtype.kind in "fV"


VectorFn = Callable[..., Array]


@dataclass(slots=True)
class VectorOp:
    """dst = fn(*sources): evaluated in fp32 (or the integer type), rounded to dst's type."""

    fn: VectorFn
    dst: Region
    srcs: tuple[Region, ...]

    def accesses(self) -> list[Access]:
        """Sources and destination."""
        return [*reads(*self.srcs), *writes(self.dst)]

    def read(self, memory: CoreMemory) -> Any:
        """The result, before rounding."""
        args = [memory.view(s) for s in self.srcs]
        args = [a.astype(np.float32) if _is_half(a) else a for a in args]
        with np.errstate(all="ignore"):
            return np.array(self.fn(*args))

    def write(self, memory: CoreMemory, values: Array) -> None:
        """Round and store."""
        memory.view(self.dst)[...] = convert(values, DType.of(self.dst.dtype))


@dataclass(frozen=True)
class Quantised:
    """What FIXP makes of int32 sums: sum · scale; with limits rounded, + offset, saturated."""

    scale: float
    offset: int
    limits: tuple[int, int] | None

    def __call__(self, sums: Array, scales: Array | None) -> Array:
        """The values of a piece; `scales` (one per column) instead of the one."""
        scale = np.float32(self.scale) if scales is None else scales
        y = sums.astype(np.float32) * scale
        return y if self.limits is None else np.clip(np.rint(y) + self.offset, *self.limits)


@dataclass(slots=True)
class Fixpipe:
    """L0C → GM through FIXP: bias and ReLU on the sums, quantisation, then the cast.

    `biases` and `scales` hold one region per pair (in L1, broadcast to the pair's shape), or none.
    `atomic` adds to what is in GM.
    """

    pairs: Sequence[tuple[Region, Region]]
    biases: Sequence[Region]
    relu: bool
    atomic: bool = False
    quant: Quantised | None = None
    scales: Sequence[Region] = ()

    def accesses(self) -> list[Access]:
        """L0C, the biases and scales, and GM."""
        into = [dst for dst, _ in self.pairs]
        read = reads(*(src for _, src in self.pairs), *self.biases, *self.scales)
        return [*read, *(adds if self.atomic else writes)(*into)]

    def read(self, memory: CoreMemory) -> list[Array]:
        """Converted values."""
        out = []
        for i, (dst, src) in enumerate(self.pairs):
            values = memory.view(src)
            if self.biases:
                values = values + memory.view(self.biases[i]).astype(values.dtype)
            if self.relu:
                values = np.maximum(values, 0)
            if self.quant is not None:
                scales = memory.view(self.scales[i]) if self.scales else None
                values = self.quant(values, scales)
            out.append(_cast(values, dst.dtype))
        return out

    def write(self, memory: CoreMemory, values: list[Array]) -> None:
        """Store them."""
        for (dst, _), v in zip(self.pairs, values, strict=True):
            if self.atomic:
                memory.view(dst)[...] += v
            else:
                memory.view(dst)[...] = v
