"""Buffers that one block misuses: bytes out of bounds, alignment, reads of bytes never written."""

from __future__ import annotations

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.program.access import Access, Mode
from npusim.program.isa import Pipe
from npusim.program.region import GM, Region
from npusim.sanitize.findings import Finding, FindingKind, Findings
from npusim.sanitize.overlap import Key, key_of
from npusim.sanitize.walk import VERBS, Step, side

BLOCK, FRACTAL = 32, 512  #: bytes: DMA moves 32 B blocks of UB and L1, the cube reads fractals
ROW = 64  #: bytes of a fractal's row in L0C, where FIXP may begin (Ascend C: DataCopy from CO1)
_CUBE = ("L0A", "L0B", "L0C")


def buffer_sizes(chip: ChipSpec) -> dict[str, int]:
    """Bytes of each buffer of a core."""
    core = chip.core
    return {
        "UB": core.ub.size,
        "L1": core.l1.size,
        "L0A": core.l0a.size,
        "L0B": core.l0b.size,
        "L0C": core.l0c.size,
    }


class MemoryChecker:
    """Visits the instructions of one block (see `BlockWalk`).

    Args:
        sizes: of the buffers.

    Attributes:
        uninitialised: bytes of a buffer are read that nothing wrote: see `kernel_values` for
            whether it matters.
    """

    def __init__(
        self,
        where: str,
        sizes: dict[str, int],
        findings: Findings,
    ) -> None:
        self._where, self._sizes, self._findings = where, sizes, findings
        self.uninitialised = False
        self._written: dict[tuple[int, str], np.ndarray] = {}
        self._known: set[tuple[int, str, Key]] = set()  #: regions seen to be written

    def __call__(self, step: Step, accesses: list[Access]) -> None:
        """Check an instruction, and remember what it writes."""
        here = [a for a in accesses if a.region.size and a.region.space != GM]
        sound = [a for a in here if self._within(step, a)]
        for access in sound:
            self._check_alignment(step, access)
            if access.mode is not Mode.WRITE:  # sums are read before they are written
                self._check_written(step.actor[0], access.region)
        for access in sound:
            if access.mode is not Mode.READ:
                self._write(step.actor[0], access.region)

    def _within(self, step: Step, access: Access) -> bool:
        space = access.region.space
        found = out_of_bounds(self._where, step, access, space, self._sizes[space])
        if found is not None:
            self._findings.add(found)
        return found is None

    def _check_alignment(self, step: Step, access: Access) -> None:
        """Of what moves by blocks or fractals; vector lanes and single values may be anywhere."""
        r, pipe = access.region, step.actor[1]
        unit = FRACTAL if r.space in _CUBE else BLOCK
        if r.space == "L0C" and pipe == Pipe.FIXP:
            unit = ROW
        anywhere = r.size == 1 or (r.space == "UB" and pipe == Pipe.V)
        if anywhere or r.offset % unit == 0:
            return
        self._findings.add(
            Finding(
                FindingKind.MISALIGNED,
                self._where,
                None,
                side(step, VERBS[access.mode]),
                r.space,
                r.offset,
                r.end() - r.offset,
                f"an offset that is a multiple of {unit} B",
            )
        )

    # -- initialisation --------------------------------------------------------------------

    def _bytes(self, core: int, space: str) -> np.ndarray:
        """A byte for each of a buffer's: 0xFF when it was written, else 0."""
        found = self._written.get((core, space))
        if found is None:
            found = self._written[(core, space)] = np.zeros(self._sizes[space], np.uint8)
        return found

    def _check_written(self, core: int, r: Region) -> None:
        key = (core, r.space, key_of(r))
        if key in self._known:
            return
        if bool((_words(r, self._bytes(core, r.space)) == -1).all()):
            self._known.add(key)
        else:
            self.uninitialised = True

    def _write(self, core: int, r: Region) -> None:
        key = (core, r.space, key_of(r))
        if key not in self._known:
            _words(r, self._bytes(core, r.space))[...] = -1
            self._known.add(key)


def out_of_bounds(where: str, step: Step, access: Access, space: str, size: int) -> Finding | None:
    """What is wrong with an access that leaves a memory of `size` bytes; None when it does not."""
    r = access.region
    if r.offset >= 0 and r.end() <= size:
        return None
    start, end = (max(r.offset, size), r.end()) if r.offset >= 0 else (r.offset, 0)
    return Finding(
        FindingKind.OUT_OF_BOUNDS,
        where,
        None,
        side(step, VERBS[access.mode]),
        space,
        start,
        end - start,
        f"bytes within the {size} B of {space}",
    )


def _words(r: Region, memory: np.ndarray) -> np.ndarray:
    """The region's elements as signed integers in `memory`: -1 where all bytes are 0xFF."""
    kind = np.dtype(f"i{r.dtype.itemsize}")
    return np.ndarray(r.shape, kind, memory, r.offset, r.strides)
