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
from npusim.ir import Layout
from npusim.program.kernel import KernelArgs
from npusim.program.region import Region, contiguous_run

BLOCK_BYTES = 32
#: Cycles of the scalar unit per command of a row (measured: 128 B, 32 blocks in two rounds).
ROW_COMMAND = 3.4
#: The same for the H·W elements of a channel, anywhere in GM: by data_move_pad (measured on the
#: 910B2: 64–70), and on the first generation (18.8 with everything, rows of 98 B).
CHANNEL_PAD, CHANNEL = 66, 14
#: Cycles per element between a filter and FRACTAL_Z on split cores (measured on the 910B2: 3.9–4.5,
#: mostly of the scalar unit, which computes the 32 addresses of every vnchwconv).
FILTER = 4.1
VNC = 1.15  #: cycles of a vnchwconv repeat (16 blocks), as of a unary one (fit: 4.6 with a copy)
MASK = 2  #: cycles to set the mask of an instruction
SCALAR_READ = 45  #: cycles until a value read from UB reaches an instruction that spreads it
SCALAR_COPY = 13.4  #: cycles of a load, a store and two addresses of the scalar unit


def buffers_of(args: KernelArgs) -> int:
    """Slots of a copy's buffers: CANN's Slice, TensorMove and TransData take turns in one.

    Their MTE2 and MTE3 ratios add up to one in profiles; Concat and Split move both ways at once.
    """
    return int(args.get("buffers", 1 if args.op_type in ("Slice", "TransData") else 2))


def busy_blocks(args: KernelArgs, cores: int) -> int:
    """Blocks that have something to do: NC1HWC0 is shared by whole images where there are many."""
    images = args.operands[0].shape[0] if args.op_type == "TransData" else 0
    return -(-images // -(-images // cores)) if images >= cores // 2 else cores


def row_commands(
    args: KernelArgs, chip: ChipSpec, rows: int, nbytes: int, load: bool
) -> int | None:
    """The bursts that take as long as commands of their own for `rows` rows; None elsewhere.

    So it is for rows of a Transpose that keeps the last axis on the first generation (a fused
    Transpose, "bursts", moves its rows as bursts of one command), and for the rows of channels
    (H·W elements) on the plain side of NC1HWC0.
    """
    port = chip.core.mte2 if load else chip.core.mte3
    rate = chip.core.mte2.ub_rate if load else chip.core.mte3.rate
    if args.op_type == "TransData":
        if load is not (args.operands[0].layout is Layout.ND):
            return None
        each = CHANNEL_PAD if chip.cores.split else CHANNEL
        return round((rows * each + nbytes / rate) / port.burst)
    if args.op_type != "Transpose" or chip.cores.split or args.get("bursts") or not load:
        return None
    return round(rows * ROW_COMMAND / port.burst)


def by_scalar(dst: Region, src: Region, chip: ChipSpec) -> bool:
    """Whether the scalar unit must put the rows of a copy together."""
    if chip.cores.split:  # the DMA moves single bytes there
        return False
    run = contiguous_run(dst, src)
    return run < src.size and run * src.dtype.itemsize < BLOCK_BYTES and _dense(dst)


def swap_cycles(args: KernelArgs, chip: ChipSpec, nbytes: int, elements: int) -> int | None:
    """Cycles to transpose a tile of TransData; None where the instruction's own cost says it.

    Args:
        nbytes: of the tile with its padding; elements: without.
    """
    if args.get("filter") and chip.cores.split:
        return ceil(elements * FILTER)
    if args.op_type != "TransData" or chip.cores.split:
        return None
    return ceil(nbytes / (16 * BLOCK_BYTES) * VNC) + chip.core.vector.head


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
