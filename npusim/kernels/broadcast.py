"""The iteration space of an elementwise launch: few axes, whatever the ranks and layouts.

Storage shapes are aligned, axes along which every operand behaves alike are merged, and the
innermost line is cut into units:

    outer axes … × reps × unit          line = up to reps · unit elements, contiguous in GM

A unit is a few 32 B blocks; where a small vector repeats along the line (channels of NC1HWC0,
the last axis of a narrow matrix), a unit is a whole number of its periods, so that one copy of
the vector serves every repeat of an instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from npusim.errors import UnsupportedError
from npusim.ir import Layout
from npusim.ir.layout import c0_of
from npusim.kernels.vector_program import Pattern
from npusim.program.kernel import OperandSpec

REPEAT = 128  #: elements that a vector repeat covers in fp16
MAX_UNIT = 4096  #: elements of a unit at most


@dataclass(frozen=True)
class Space:
    """Axes of the tile: `outer`, then the line as reps × unit.

    Attributes:
        outer: extents of the axes before the line.
        line: elements of the line.
        unit: elements of a unit.
        period: elements after which a repeated operand's line starts again (0: none is).
        patterns: operand → along which axes (outer…, reps, unit) it varies.
    """

    outer: tuple[int, ...]
    line: int
    unit: int
    period: int
    patterns: tuple[Pattern, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """outer…, reps, unit."""
        return (*self.outer, -(-self.line // self.unit), self.unit)

    def gm_shape(self, pattern: Pattern) -> tuple[int, ...]:
        """An operand's array in GM, over outer… and the line (1 where it does not vary)."""
        *outer, reps, unit = pattern
        line = self.line if reps else (self.period if unit else 1)
        return (*(n if v else 1 for n, v in zip(self.outer, outer, strict=True)), line)


def aligned_shape(spec: OperandSpec, out: OperandSpec, channels: bool = False) -> tuple[int, ...]:
    """The operand's storage shape at the output's storage rank.

    Args:
        channels: the operand is a vector over dimension 1 of the output.

    Raises:
        UnsupportedError: the operand does not line up with the output's layout.
    """
    rank = len(out.shape)
    shape = spec.shape
    if channels and len(shape) == 1:
        shape = (*shape, *(1,) * (rank - 2))
    shape = (1,) * (rank - len(shape)) + shape
    target = out.storage_shape
    if spec.layout is not Layout.ND:
        blocked = {Layout.NC1HWC0: (1,), Layout.FRACTAL_NZ: (rank - 2, rank - 1)}
        axes = blocked.get(out.layout, tuple(range(rank)))
        same = spec.layout is out.layout and len(spec.shape) == rank
        if not same or any(shape[a] != out.shape[a] for a in axes):
            raise _misfit(spec, out)  # blocks do not broadcast
        if any(n not in (1, t) for n, t in zip(spec.storage_shape, target, strict=True)):
            raise _misfit(spec, out)  # blocks of another C0
        return spec.storage_shape
    if out.layout is Layout.ND:
        return shape
    c0 = c0_of(out.dtype)
    if out.layout is Layout.NC1HWC0:
        n, c, h, w = shape
        if c == 1:
            return (n, 1, h, w, 1)
        if n == h == w == 1 and c % c0 == 0:
            return (1, target[1], 1, 1, c0)
    elif out.layout is Layout.FRACTAL_NZ:
        *batch, m, n = shape
        if n == 1 and (m == 1 or m % 16 == 0):
            return (*batch, 1, -(-m // 16), min(m, 16), 1)
        if m == 1 and prod(batch) == 1 and n % c0 == 0:
            return (*batch, n // c0, 1, 1, c0)
    raise _misfit(spec, out)


def _misfit(spec: OperandSpec, out: OperandSpec) -> UnsupportedError:
    return UnsupportedError(
        f"operand {spec.shape} in {spec.layout.value} with an output in {out.layout.value}",
        "the output's layout, or an ND vector over whole blocks of channels",
        "insert TransData",
    )


def make_space(shapes: list[tuple[int, ...]], out: tuple[int, ...], grain: int, cap: int) -> Space:
    """The space of operands of aligned storage `shapes` that broadcast to `out`.

    Args:
        grain: elements of a 32 B block of the narrowest type.
        cap: elements of a unit at most.
    """
    axes = merged_axes(shapes, out)
    extents = [n for n, _ in axes] or [1]
    masks = [m for _, m in axes] or [(True,) * len(shapes)]
    unit = _periodic_unit(extents, masks, grain, cap)
    if unit:
        *outer, a, n = extents
        patterns = [tuple(m[i] for m in masks) for i in range(len(shapes))]
        return Space(tuple(outer), a * n, unit, n, tuple(patterns))
    *outer, line = extents
    wide = not outer or line >= 8 * REPEAT
    patterns = [tuple(m[i] for m in [*masks, masks[-1]]) for i in range(len(shapes))]
    return Space(tuple(outer), line, REPEAT if wide else grain, 0, tuple(patterns))


def merged_axes(
    shapes: list[tuple[int, ...]], out: tuple[int, ...]
) -> list[tuple[int, tuple[bool, ...]]]:
    """Axes longer than 1, neighbours with the same broadcast pattern merged."""
    axes: list[tuple[int, tuple[bool, ...]]] = []
    for axis, n in enumerate(out):
        if n == 1:
            continue
        mask = tuple(s[axis] == n for s in shapes)
        if axes and axes[-1][1] == mask:
            axes[-1] = (axes[-1][0] * n, mask)
        else:
            axes.append((n, mask))
    return axes


def _periodic_unit(extents: list[int], masks: list[tuple[bool, ...]], grain: int, cap: int) -> int:
    """Elements of a unit that repeats the last axis, 0 when that does not apply."""
    if len(extents) < 2:
        return 0
    above, last = masks[-2:]
    repeats = any(v and not u for u, v in zip(above, last, strict=True))
    columns = any(u and not v for u, v in zip(above, last, strict=True))
    if not repeats or columns:
        return 0
    n = extents[-1]
    step = n * (grain // gcd(n, grain))
    unit = step * max(1, -(-REPEAT // step))
    unit = unit if unit <= cap else step
    return unit if unit <= cap else 0
