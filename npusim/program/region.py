"""Regions: strided pieces of a memory, as instructions name them.

A region is what `numpy.ndarray(shape, dtype, buffer, offset, strides)` would view. Kernels cut
regions out of GM operands and on-chip allocations with numpy-like view operations; no data is
involved until an instruction executes at tile level.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.errors import KernelError

GM = "GM"


class Region:
    """A strided view of a memory space.

    Attributes:
        space: "GM", "L1", "L0A", "L0B", "L0C" or "UB".
        operand: index of the GM operand (inputs first, then outputs, then workspace); -1 on chip.
        offset: byte offset of the first element in the space (GM: in the operand).
        shape, strides: extents in elements, strides in bytes (0 broadcasts).
        dtype: numpy dtype of the elements.
    """

    __slots__ = ("dtype", "offset", "operand", "shape", "space", "strides")

    def __init__(
        self,
        space: str,
        operand: int,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype,
    ) -> None:
        self.space = space
        self.operand = operand
        self.offset = offset
        self.shape = shape
        self.strides = strides
        self.dtype = dtype

    @staticmethod
    def dense(
        space: str, operand: int, offset: int, shape: tuple[int, ...], dtype: np.dtype
    ) -> Region:
        """A row-major region."""
        return Region(space, operand, offset, shape, row_major(shape, dtype.itemsize), dtype)

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (broadcast elements counted as often as they appear)."""
        return prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, key: object) -> Region:
        """Basic slicing: ints drop an axis, slices (step 1) narrow it."""
        keys = key if isinstance(key, tuple) else (key,)
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for axis, (n, s) in enumerate(zip(self.shape, self.strides, strict=True)):
            k = keys[axis] if axis < len(keys) else None
            if k is None or k == slice(None):
                shape.append(n)
                strides.append(s)
            elif isinstance(k, slice):
                start, stop, _ = k.indices(n)
                offset += start * s
                shape.append(stop - start)
                strides.append(s)
            else:
                offset += int(k) * s
        return Region(self.space, self.operand, offset, tuple(shape), tuple(strides), self.dtype)

    def permute(self, *axes: int) -> Region:
        """The axes in another order."""
        return Region(
            self.space,
            self.operand,
            self.offset,
            tuple(self.shape[a] for a in axes),
            tuple(self.strides[a] for a in axes),
            self.dtype,
        )

    def split(self, axis: int, inner: int) -> Region:
        """Axis of n elements as (n // inner, inner); n must be a multiple of inner."""
        n, s = self.shape[axis], self.strides[axis]
        if n % inner:
            raise KernelError(
                f"split of an axis of {n} elements into blocks of {inner}",
                "a multiple of the block",
                "cut the ragged tail off first",
            )
        shape = (*self.shape[:axis], n // inner, inner, *self.shape[axis + 1 :])
        strides = (*self.strides[:axis], s * inner, s, *self.strides[axis + 1 :])
        return Region(self.space, self.operand, self.offset, shape, strides, self.dtype)

    def broadcast(self, shape: tuple[int, ...]) -> Region:
        """numpy broadcasting: new leading axes and axes of extent 1 get stride 0."""
        pad = len(shape) - len(self.shape)
        strides = [0] * pad
        for n, s, target in zip(self.shape, self.strides, shape[pad:], strict=True):
            strides.append(s if n == target else 0)
        return Region(self.space, self.operand, self.offset, shape, tuple(strides), self.dtype)

    def expand(self, axis: int) -> Region:
        """A new axis of extent 1."""
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        strides = (*self.strides[:axis], 0, *self.strides[axis:])
        return Region(self.space, self.operand, self.offset, shape, strides, self.dtype)

    def as_type(self, dtype: np.dtype) -> Region:
        """The same bytes seen as another type of the same width."""
        return Region(
            self.space, self.operand, self.offset, self.shape, self.strides, np.dtype(dtype)
        )

    def view(self, memory: np.ndarray) -> np.ndarray:
        """The numpy view in `memory` (a uint8 array holding the whole space or operand)."""
        return np.ndarray(self.shape, self.dtype, memory, self.offset, self.strides)

    def end(self) -> int:
        """One past the last byte touched."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset + last + self.dtype.itemsize

    def __repr__(self) -> str:
        where = f"GM[{self.operand}]" if self.space == GM else self.space
        return f"{where}+{self.offset}:{self.dtype.name}{list(self.shape)}"


def row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a dense row-major array."""
    strides = [itemsize] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def contiguous_run(*regions: Region) -> int:
    """Elements of the longest run that is contiguous in every region of one common shape.

    Axes of extent 1 never break a run.
    """
    first = regions[0]
    run = 1
    for axis in range(len(first.shape) - 1, -1, -1):
        n = first.shape[axis]
        if n == 1:
            continue
        if any(r.strides[axis] != run * r.dtype.itemsize for r in regions):
            break
        run *= n
    return run
