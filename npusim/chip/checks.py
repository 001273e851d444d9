"""Impossible chips: what no single value shows, but the combination does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npusim.errors import nearest

if TYPE_CHECKING:
    from npusim.chip.spec import ChipSpec

SIDES = (8, 16, 32, 64)
"""Rows and columns of a cube: parts and multiples of the 16 of a fractal."""

FRACTAL = 512
"""Bytes of one 16 x 32 B fractal, the unit L0A and L0B are filled in."""

DTYPES = (
    "float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2",
    "int4", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool",
)  # fmt: skip

VECTOR_CLASSES = (
    "unary", "binary", "mla", "conv", "dup", "compare", "select", "exp", "ln", "rec", "div",
    "sqrt", "rsqrt", "reduce", "group_reduce", "transpose", "gather",
)  # fmt: skip
"""Instruction classes of `core.vector.costs`; a chip without a class has an empty entry."""


@dataclass(frozen=True)
class Problem:
    """One impossible value: its dotted key, what is allowed there, and the fix."""

    key: str
    value: object
    allowed: str
    fix: str


def problems(chip: ChipSpec) -> Iterator[Problem]:
    """Everything impossible about `chip`, most basic first."""
    yield from _counts(chip)
    yield from _numbers(chip)
    yield from _names(chip)
    yield from _buffers(chip)
    yield from _units(chip)


def _counts(chip: ChipSpec) -> Iterator[Problem]:
    core = chip.core
    counts = {
        "cores.count": chip.cores.count,
        "core.cube.m": core.cube.m,
        "core.cube.n": core.cube.n,
        "core.scalar.queue_depth": core.scalar.queue_depth,
        "core.ub.banks": core.ub.banks,
        "core.ub.bank_groups": core.ub.bank_groups,
        "scheduler.max_streams": chip.scheduler.max_streams,
        "scheduler.max_events": chip.scheduler.max_events,
        "scheduler.queue_depth": chip.scheduler.queue_depth,
        "sdma.channels": chip.sdma.channels,
        "tlb.entries": chip.tlb.entries,
        "tlb.walkers": chip.tlb.walkers,
        "aicpu.count": chip.aicpu.count,
        "host.preprocessing.workers": chip.host.preprocessing.workers,
    }
    if chip.dvpp is not None:
        counts["dvpp.jpegd.channels"] = chip.dvpp.jpegd.channels
        counts["dvpp.vpc.channels"] = chip.dvpp.vpc.channels
    counts |= {f"core.cube.k.{dtype}": k for dtype, k in core.cube.k.items()}
    counts |= {f"core.vector.lanes.{dtype}": n for dtype, n in core.vector.lanes.items()}
    if chip.cores.split:
        counts["cores.vector_count"] = chip.cores.vector_count
    for key, count in counts.items():
        if count < 1:
            yield Problem(key, count, "a whole number, 1 or more", f"set {key} to 1 or more")
    for key, side in {"core.cube.m": core.cube.m, "core.cube.n": core.cube.n}.items():
        if side not in SIDES:
            allowed = f"{', '.join(map(str, SIDES))}: operands lie in fractals of 16 rows"
            fix = f"set {key} to one of them; core.cube.k, the depth by input type, is free"
            yield Problem(key, side, allowed, fix)
    for key, count in {
        "cores.vector_count": chip.cores.vector_count,
        "links.count": chip.links.count,
    }.items():
        if count < 0:
            yield Problem(key, count, "a whole number, 0 or more", f"set {key} to 0 or more")
    if not 1 <= core.vector.max_repeat <= 255:
        yield Problem(
            "core.vector.max_repeat", core.vector.max_repeat,
            "1 to 255 (the repeat field of an instruction has 8 bits)",
            "set core.vector.max_repeat to 255 or less",
        )  # fmt: skip


def _numbers(chip: ChipSpec) -> Iterator[Problem]:
    core = chip.core
    for key, share in {
        "l2.efficiency": chip.l2.efficiency,
        "hbm.efficiency": chip.hbm.efficiency,
        "pcie.efficiency": chip.pcie.efficiency,
    }.items():
        if not 0 < share <= 1:
            yield Problem(key, share, "above 0, at most 1", f"set {key} to the share of peak")
    costs = {"core.mte1.load3d_cycles": core.mte1.load3d_cycles}
    for name, cost in core.vector.costs.items():
        widths: Mapping[str, float | None] = {"b16": cost.b16, "b32": cost.b32}
        for width, cycles in widths.items():
            if cycles is not None:
                costs[f"core.vector.costs.{name}.{width}"] = cycles
    for key, cycles in costs.items():
        if not 0 < cycles < math.inf:
            yield Problem(key, cycles, "cycles, above 0", f"set {key} above 0")
    if not 0 <= (chip.hbm.turnaround or 0.0) < math.inf:
        yield Problem(
            "hbm.turnaround", chip.hbm.turnaround, "0 or more", "set hbm.turnaround to 0 or more"
        )
    bursts = {"core.mte2.burst": core.mte2.burst, "core.mte3.burst": core.mte3.burst}
    if core.fixp:
        bursts["core.fixp.burst"] = core.fixp.burst
    for key, cycles in bursts.items():
        if not 0 <= cycles < math.inf:
            yield Problem(key, cycles, "cycles, 0 or more", f"set {key} to 0 or more")


def _names(chip: ChipSpec) -> Iterator[Problem]:
    vector = chip.core.vector
    for section, names in {
        # HF32: fp32 operands of which the cube takes the upper 19 bits
        "core.cube.k": {k for k in chip.core.cube.k if k != "hfloat32"},
        "core.vector.lanes": vector.lanes,
        "core.vector.dtypes": vector.dtypes,
    }.items():
        for name in names:
            if name not in DTYPES:
                yield _unknown(f"{section}.{name}", name, DTYPES)
    for name in vector.costs:
        if name not in VECTOR_CLASSES:
            yield _unknown(f"core.vector.costs.{name}", name, VECTOR_CLASSES)
    for name in VECTOR_CLASSES:
        if name not in vector.costs:
            key = f"core.vector.costs.{name}"
            fix = f"give {key} its cycles per repeat, or {{}} when the chip has no such instruction"
            yield Problem(key, None, "b16 and b32 in cycles, or {}", fix)
    for dtype in vector.dtypes:
        if dtype not in vector.lanes:
            key = f"core.vector.lanes.{dtype}"
            fix = f"set {key}, or take {dtype} out of core.vector.dtypes"
            yield Problem(key, None, "lanes for every dtype of core.vector.dtypes", fix)


def _unknown(key: str, name: str, options: tuple[str, ...]) -> Problem:
    close = nearest(name, options)
    fix = f"did you mean {key.rpartition('.')[0]}.{close}?" if close else f"remove {key}"
    return Problem(key, name, ", ".join(options), fix)


def _buffers(chip: ChipSpec) -> Iterator[Problem]:
    core = chip.core
    result = core.cube.m * core.cube.n * 4
    for key, size, least, why in (
        ("core.l0a.size", core.l0a.size, FRACTAL, "one fractal"),
        ("core.l0b.size", core.l0b.size, FRACTAL, "one fractal"),
        ("core.l0c.size", core.l0c.size, result, "one fp32 result block"),
        ("core.l1.size", core.l1.size, FRACTAL, "one fractal, as L0A is filled from L1"),
        ("core.ub.size", core.ub.size, core.vector.repeat_bytes, "one vector repeat"),
        ("hbm.size", chip.hbm.size, chip.l2.size, "l2.size"),
    ):
        if size < least:
            allowed = f"at least {least} B ({why})"
            yield Problem(key, f"{size} B", allowed, f"set {key} to {least} B or more")
    if core.ub.size % 32 or core.ub.size % core.ub.block:
        block = math.lcm(32, core.ub.block)
        fix = f"set core.ub.size to {max(1, core.ub.size // block) * block} B"
        yield Problem("core.ub.size", f"{core.ub.size} B", f"a multiple of {block} B", fix)
    if core.ub.banks % core.ub.bank_groups:
        allowed = f"a multiple of core.ub.bank_groups = {core.ub.bank_groups}"
        yield Problem("core.ub.banks", core.ub.banks, allowed, "change one of the two")


def _units(chip: ChipSpec) -> Iterator[Problem]:
    if chip.cores.split and chip.core.fixp is None:
        yield Problem(
            "core.fixp", None, "a section, as a split chip empties L0C through FIXP only",
            "add core.fixp (see ascend910b1), or set cores.split to false",
        )  # fmt: skip
    if not chip.cores.split and chip.core.vector.l0c_rate is None:
        yield Problem(
            "core.vector.l0c_rate", None,
            "a rate such as 256 B/cycle, as a unified core empties L0C through the vector pipe",
            "set core.vector.l0c_rate, or cores.split to true",
        )  # fmt: skip
