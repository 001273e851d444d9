"""Cost of an instruction in core cycles: pure functions of the instruction and the chip.

Formulas from the hardware notes §5; every constant is a key of the chip description.
"""

from __future__ import annotations

from math import ceil

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.program.region import Region, contiguous_run


def mmad_cycles(chip: ChipSpec, mb: int, k: int, nb: int, dtype: str) -> int:
    """Cycles of Mb × ceil(k / k_step) × Nb cube steps; k in elements.

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
    cycles = mb * kb * nb + cube.head
    if cube.odd_penalty and mb % 2 and nb % 2:
        cycles += kb
    return cycles


def vector_repeats(chip: ChipSpec, bits: int, *regions: Region) -> tuple[int, int]:
    """(repeats, instructions) that cover regions of one common shape.

    A repeat covers `repeat_bytes` of the element width; an instruction takes up to `max_repeat`
    repeats along one stride. Broadcast sources (stride 0) do not break a run.
    """
    vec = chip.core.vector
    per_repeat = max(1, vec.repeat_bytes * 8 // bits)
    first = regions[0]
    dense = [r for r in regions if any(r.strides)] or [first]
    run = contiguous_run(*dense) if first.size else 0
    if run == 0:
        return 0, 0
    rows = first.size // run
    per_row = -(-run // per_repeat)
    limit = vec.max_repeat
    instructions = min(rows * -(-per_row // limit), per_row * -(-rows // limit))
    return rows * per_row, instructions


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


def load3d_cycles(chip: ChipSpec, fractals: int, stride_w: int, dtype_bytes: int) -> int:
    """img2col of `fractals` 16-row fractals: cycles per 512 B fractal grow with stride_w."""
    mte1 = chip.core.mte1
    factor = max(1.0, dtype_bytes / 2)
    return mte1.load3d_head + ceil(fractals * mte1.load3d_cycles * stride_w * factor)
