"""What kernels over one flat axis share: tiles of it, dealt to blocks, and their tilings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from npusim.chip.spec import ChipSpec
from npusim.kernels.elementwise import MIN_BLOCK_BYTES, UB_SHARE
from npusim.program.kernel import Tiling


@dataclass(frozen=True)
class Stretch:
    """The run of `size` elements from `start` that a block works on, in tiles of `chunk`."""

    start: int
    size: int
    chunk: int

    @property
    def tiles(self) -> int:
        """Tiles of the run."""
        return -(-self.size // self.chunk)

    def tile(self, index: int) -> slice:
        """The elements of one tile."""
        first = self.start + index * self.chunk
        return slice(first, min(first + self.chunk, self.start + self.size))


def stretch(n: int, grain: int, tiling: Tiling, block: int) -> Stretch:
    """A block's run of n elements: equal numbers of grains, the last one ragged."""
    grains = -(-n // grain)
    first, last = (grains * (block + i) // tiling["blocks"] * grain for i in (0, 1))
    return Stretch(first, min(n, last) - first, tiling["chunk"])


def flat_tilings(
    n: int, width: int, grain: int, chip: ChipSpec, footprint: Callable[[int], int]
) -> Iterator[Tiling]:
    """Chunks of whole grains whose UB bytes (`footprint`) fit, for n elements of `width` bytes."""
    grains = -(-n // grain)
    blocks = max(1, min(chip.vector_cores(), grains, n * width // MIN_BLOCK_BYTES))
    share = -(-grains // blocks)
    room = int(chip.core.ub.size * UB_SHARE)
    seen = set()
    for pieces in (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512):
        chunk = -(-share // pieces) * grain
        if chunk not in seen and footprint(chunk) <= room:
            seen.add(chunk)
            yield {"chunk": chunk, "blocks": blocks}
            if len(seen) == 4:
                return
    if not seen and footprint(grain) <= room:
        yield {"chunk": grain, "blocks": blocks}
