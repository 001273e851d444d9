"""How CANN's copies differ: commands, buffers, and what happens between a load and its store.

Cores with nothing but masked vector instructions and a scalar unit (all of the first generation)
handle lines that are not whole repeats one by one:

* a row copied along broadcast axes is one instruction for its whole repeats and one, with a mask
  of its own, for the rest (measured: rows of 80 fp32 take 14 cycles each);
* an element broadcast over a line that is not whole 32 B blocks is read by the scalar unit and
  written by an instruction of its own (measured: 46–58 cycles a line);
* rows shorter than a 32 B block are put together by the scalar unit, element by element
  (measured: 13.4 cycles an element).
"""

from __future__ import annotations

from math import ceil

from npusim.chip.spec import ChipSpec
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region, contiguous_run

BLOCK_BYTES = 32
ROW_COMMAND = 7.2  #: cycles of the scalar unit per command of a row (measured: rows of 128 B)
MASK = 2  #: cycles to set the mask of an instruction
SCALAR_READ = 45  #: cycles until a value read from UB reaches an instruction that spreads it
SCALAR_COPY = 13.4  #: cycles of a load, a store and two addresses of the scalar unit


def buffers_of(args: KernelArgs) -> int:
    """Slots through which plain copies pass: CANN's Slice and TensorMove take turns in one.

    Their MTE2 and MTE3 ratios add up to one in profiles; Concat and Split move both ways at once.
    """
    return int(args.get("buffers", 1 if args.op_type == "Slice" else 2))


def row_commands(args: KernelArgs, chip: ChipSpec, rows: int) -> int | None:
    """The bursts that take as long as a Transpose's commands, one per row; None elsewhere.

    It is so on the first generation, where the last axis stays; a fused Transpose ("bursts")
    moves its rows as bursts of one command.
    """
    if args.op_type != "Transpose" or chip.cores.split or args.get("bursts"):
        return None
    return round(rows * ROW_COMMAND / chip.core.mte2.burst)


def by_scalar(dst: Region, src: Region, chip: ChipSpec) -> bool:
    """Whether the scalar unit must put the rows of a copy together."""
    if chip.cores.split:  # the DMA moves single bytes there
        return False
    run = contiguous_run(dst, src)
    return run < src.size and run * src.dtype.itemsize < BLOCK_BYTES and _dense(dst)


def scalar_cycles(elements: int) -> int:
    """Cycles of the scalar unit to copy so many elements within UB."""
    return ceil(elements * SCALAR_COPY)


def spread_cycles(dst: Region, src: Region, chip: ChipSpec) -> int | None:
    """Cycles to copy rows of `src` along its broadcast axes; None where whole repeats do.

    Args:
        dst: the tile to write; src: the tile loaded, stride 0 or extent 1 where it is broadcast.
    """
    if chip.cores.split or not dst.shape:
        return None
    vec, line = chip.core.vector, dst.shape[-1] * dst.dtype.itemsize
    lines = dst.size // dst.shape[-1]
    costs = vec.costs["dup"]
    per = (costs.b16 if dst.dtype.itemsize <= 2 else costs.b32) or 0.0
    full, rest = divmod(line, vec.repeat_bytes)
    if src.shape[-1] < dst.shape[-1] and rest % BLOCK_BYTES:
        return ceil(lines * (SCALAR_READ + (full + 1) * per + vec.head + MASK))
    if not rest or not full:
        return None
    return ceil(lines * ((full + 1) * per + 2 * (vec.head + MASK)))


def _dense(r: Region) -> bool:
    return contiguous_run(r) == r.size
