"""What a launch that does not fit a core would need: the smallest buffers that hold a tiling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from npusim.chip.spec import ChipSpec
from npusim.chip.units import format_bytes

BUFFERS = ("ub", "l1", "l0c", "l0a", "l0b")
FACTORS = tuple(2**i for i in range(1, 9))  #: how much larger a buffer may become


def buffers_needed(chip: ChipSpec, fits: Callable[[ChipSpec], bool]) -> str:
    """Buffers with which `fits` holds, as overrides of the chip; '' where no size helps.

    Buffers grow by powers of two: a single one where that is enough, else as few bytes as that
    finds.
    """
    now = {b: getattr(chip.core, b).size for b in BUFFERS}
    sizes = _smallest(now, lambda grown: fits(_with_buffers(chip, grown)))
    return ", ".join(f"core.{b}.size={format_bytes(n).replace(' ', '')}" for b, n in sizes.items())


def _smallest(now: Mapping[str, int], fits: Callable[[Mapping[str, int]], bool]) -> dict[str, int]:
    """Buffer → bytes for those that must grow; {} when none helps."""
    for factor, b in product(FACTORS, BUFFERS):
        if fits({b: now[b] * factor}):
            return {b: now[b] * factor}
    sizes = {b: n * FACTORS[-1] for b, n in now.items()}
    if not fits(sizes):
        return {}
    for b in BUFFERS:
        while sizes[b] > now[b] and fits({**sizes, b: sizes[b] // 2}):
            sizes[b] //= 2
    return {b: n for b, n in sizes.items() if n > now[b]}


def _with_buffers(chip: ChipSpec, sizes: Mapping[str, int]) -> ChipSpec:
    """The chip with buffers of these sizes."""
    grown = {b: getattr(chip.core, b).model_copy(update={"size": n}) for b, n in sizes.items()}
    return chip.model_copy(update={"core": chip.core.model_copy(update=grown)})
