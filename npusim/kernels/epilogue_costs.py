"""What the way out of L0C costs: bytes of its operands, and cycles to rank tilings by."""

from __future__ import annotations

from npusim.chip.spec import ChipSpec
from npusim.kernels.epilogue import EpilogueSpec, l0c_slots, strip_blocks
from npusim.kernels.requant import STEPS as QUANT_STEPS
from npusim.program.kernel import KernelArgs


def epilogue_bytes(
    args: KernelArgs, bias: int | None, out_bytes: int, bias_reads: int
) -> dict[int, tuple[int, int]]:
    """operand → (unique, total) bytes of the epilogue's own operands."""
    traffic: dict[int, tuple[int, int]] = {}
    for step in args.epilogue:
        if step.operand is not None and step.op_type in QUANT_STEPS:
            scales = args.operands[step.operand]
            traffic[step.operand] = (scales.nbytes, bias_reads * scales.dtype.size)
        elif step.operand is not None:
            other = args.operands[step.operand]
            scaled = out_bytes * other.dtype.size // args.outputs[0].dtype.size
            traffic[step.operand] = (scaled, scaled)
    if bias is not None:
        spec = args.operands[bias]
        traffic[bias] = (spec.nbytes, bias_reads * spec.dtype.size)
    return traffic


def drain_cycles(
    spec: EpilogueSpec,
    chip: ChipSpec,
    out_bytes: int,
    share: tuple[int, int],
    tile: tuple[int, int],
) -> float:
    """Cycles to drain a block's share (M, N blocks) in tiles, to rank tilings.

    The slowest of the pipes that take part, with the fixed cost of every strip.
    """
    core = chip.core
    tiles = -(-share[0] // tile[0]) * -(-share[1] // tile[1])
    if core.fixp is not None:
        return out_bytes / core.fixp.rate + tiles * (core.fixp.head + core.fixp.tail)
    elements = share[0] * share[1] * 256
    strips = tiles * -(-tile[1] // max(1, strip_blocks(spec, chip, tile[0], tile[1])))
    vector = spec.vector_cycles(chip, elements)
    vector += strips * spec.passes * (core.vector.head + core.vector.tail)
    store = out_bytes / core.mte3.rate + strips * core.mte3.head
    return max(vector, store)


def load_latency(chip: ChipSpec) -> int:
    """Cycles of a GM load that nothing hides, besides its bytes."""
    return chip.core.mte2.head + chip.l2.read_latency + chip.hbm.latency


def cold_cycles(chip: ChipSpec, weights: int, block_dim: int) -> float:
    """Cycles in which the blocks together get weights (bytes) from HBM into L1, at least."""
    rate = chip.core.mte2.cold_rate
    return 0.0 if rate is None else weights / (rate * block_dim)


def tile_floor(chip: ChipSpec, tile: tuple[int, int], slots: int = 2) -> float:
    """Least cycles between two L0C tiles: the way through the pipes, over the L0C slots."""
    core = chip.core
    latency = core.mte1.tail + core.cube.tail + 4 * core.scalar.flag
    if core.fixp is not None:
        latency += core.fixp.head + chip.l2.write_latency
    else:
        latency += 2 * (core.vector.head + core.vector.tail)
    return latency / l0c_slots(chip, tile, slots)
