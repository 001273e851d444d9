"""Cost of an instruction in core cycles: pure functions of the instruction and the chip.

Forms follow CANN's TIK cycle model (mmad, load2d, load3d) and published instruction timings of the
910B; every constant is a key of the chip description, with its source.
"""

from __future__ import annotations

from math import ceil

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.program.region import Region, contiguous_run


def mmad_cycles(chip: ChipSpec, mb: int, k: int, nb: int, dtype: str) -> int:
    """Cycles to multiply mb × nb fractals of the result over k elements, block by block.

    Raises:
        UnsupportedError: the cube does not take this input type.
    """
    cube = chip.core.cube
    step = cube.k.get(dtype)
    if step is None:
        raise UnsupportedError(
            f"{dtype} inputs on the cube of {chip.name}",
            ", ".join(cube.k),
            "use a precision the cube takes, or a kernel on the vector unit",
        )
    kb = -(-k // step)
    cycles = cube.blocks(mb, nb) * kb + cube.head
    if cube.odd_penalty and mb % 2 and nb % 2:
        cycles += kb
    return cycles


MAX_REPEAT_STRIDE = 255  #: blocks between repeats: 8 bits (Ascend C, BinaryRepeatParams)


def vector_repeats(chip: ChipSpec, bits: int, *regions: Region) -> tuple[int, int]:
    """(repeats, instructions) that cover regions of one common shape.

    A repeat covers `repeat_bytes` of the element width; an instruction takes up to `max_repeat`
    repeats along one stride. A source whose innermost stride is 0 repeats one 32 B block
    (block stride 0) and does not break a run, nor does one held for a whole repeat. Short runs of
    whole blocks at one distance are taken eight blocks a repeat (see `_by_blocks`).
    """
    vec = chip.core.vector
    per_repeat = max(1, vec.repeat_bytes * 8 // bits)
    first = regions[0]
    if not first.size:
        return 0, 0
    axes = [a for a, n in enumerate(first.shape) if n > 1]
    run, held = 1, [False] * len(regions)
    while axes:
        strides = [r.strides[axes[-1]] for r in regions]
        still = [s == 0 and (h or run == 1) for s, h in zip(strides, held, strict=True)]
        if not all(
            z or (not h and s == run * r.dtype.itemsize)
            for z, h, s, r in zip(still, held, strides, regions, strict=True)
        ):
            break
        held = still
        run *= first.shape[axes.pop()]
    rows = first.size // run
    per_row = -(-run // per_repeat)
    limit = vec.max_repeat
    line = _longest_line(axes, regions)
    by_column = per_row * (rows // line) * -(-line // limit)
    by_row = rows * per_row, min(rows * -(-per_row // limit), by_column)
    spread = _by_blocks(chip, axes, run, regions) if not any(held) else None
    return by_row if spread is None else min(by_row, spread)


def _by_blocks(
    chip: ChipSpec, axes: list[int], run: int, regions: tuple[Region, ...]
) -> tuple[int, int] | None:
    """(repeats, instructions) where the last of `axes` counts runs of a few whole 32 B blocks.

    A repeat takes its eight blocks at one distance (block stride), so each block of a run has an
    instruction of its own. None where that cannot be.
    """
    block, whole = chip.core.ub.block, chip.core.vector.repeat_bytes
    width = regions[0].dtype.itemsize
    if not axes or run * width % block or any(r.dtype.itemsize != width for r in regions):
        return None
    most, count = whole // block, regions[0].shape[axes[-1]]
    strides = [r.strides[axes[-1]] for r in regions]
    if any(s % block or s <= 0 or s * most > MAX_REPEAT_STRIDE * block for s in strides):
        return None
    blocks, lines = run * width // block, regions[0].size // run // count
    repeats = -(-count // most)
    limit = chip.core.vector.max_repeat
    return blocks * lines * repeats, blocks * lines * -(-repeats // limit)


def _longest_line(axes: list[int], regions: tuple[Region, ...]) -> int:
    """The most rows that one stride per region reaches, over the given axes."""
    best, line = 1, 1
    for i in range(len(axes) - 1, -1, -1):
        n = regions[0].shape[axes[i]]
        follows = i + 1 < len(axes) and all(
            r.strides[axes[i]] == r.strides[axes[i + 1]] * r.shape[axes[i + 1]] for r in regions
        )
        line = line * n if follows else n
        best = max(best, line)
    return best


def vector_cycles(chip: ChipSpec, cost_class: str, bits: int, repeats: int, count: int) -> int:
    """Cycles of `repeats` repeats in `count` instructions of a cost class.

    Raises:
        UnsupportedError: the chip's vector unit has no such instruction for this width.
    """
    costs = chip.core.vector.costs.get(cost_class)
    per = None if costs is None else (costs.b16 if bits <= 16 else costs.b32)
    if per is None:
        raise UnsupportedError(
            f"vector instruction class {cost_class!r} for {bits}-bit elements on {chip.name}",
            ", ".join(chip.core.vector.costs),
            f"give core.vector.costs.{cost_class}.b{bits} in the chip's YAML",
        )
    return ceil(repeats * per) + count * chip.core.vector.head


def dma_cap(nbytes: int, bursts: int, rate: float, burst_cycles: float, min_burst: int) -> float:
    """Bytes per cycle that a port reaches for `bursts` separate pieces.

    Each piece moves at least `min_burst` bytes through the port, and costs `burst_cycles`.
    """
    if nbytes <= 0:
        return rate
    moved = max(nbytes, bursts * min_burst)
    cycles = max(moved / rate, bursts * burst_cycles)
    return min(rate, nbytes / cycles)


def bursts(dst: Region, src: Region) -> int:
    """Contiguous pieces of a transfer between two regions of one shape."""
    run = contiguous_run(dst, src)
    return dst.size // run if run else 0


def fractal_load_cycles(nbytes: int, rate: float, head: int) -> int:
    """load2d: head plus bytes over the path's width."""
    return head + ceil(nbytes / rate)


def load3d_cycles(
    chip: ChipSpec,
    fractals: int,
    stride_w: int,
    dtype_bytes: int,
    per_fractal: float | None = None,
) -> int:
    """img2col of `fractals` 16-row fractals: cycles per 512 B fractal grow with stride_w.

    `per_fractal` replaces the chip's own cycles per fractal.
    """
    mte1 = chip.core.mte1
    per = mte1.load3d_cycles if per_fractal is None else per_fractal
    factor = max(1.0, dtype_bytes / 2)
    return mte1.load3d_head + ceil(fractals * per * stride_w * factor)
