"""GM that the blocks of a launch share: blocks run side by side, phases one after the other.

What a block stores, no other block of its phase may store too or read; what a kernel loads of its
outputs and workspace, something must have stored before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from npusim.program.access import Access, Mode
from npusim.program.region import GM, Region
from npusim.sanitize.findings import Finding, FindingKind, Findings, Side
from npusim.sanitize.kernel_memory import out_of_bounds
from npusim.sanitize.kernel_races import Spaces
from npusim.sanitize.overlap import Runs, merged, runs, shared_bytes
from npusim.sanitize.walk import VERBS, Step, side

#: Modes that no two blocks may mix on the same bytes, and the race that it is.
_PAIRS = (
    (Mode.WRITE, Mode.WRITE, FindingKind.WAW),
    (Mode.WRITE, Mode.ADD, FindingKind.WAW),
    (Mode.WRITE, Mode.READ, FindingKind.RAW),
    (Mode.ADD, Mode.READ, FindingKind.RAW),
)

Meeting = tuple[tuple[int, int], tuple[int, int]]  #: (block, other block), (first byte, end)


@dataclass
class _Touched:
    """What one block did to one operand in one mode."""

    regions: list[Region] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)

    def bytes(self) -> Runs:
        """All bytes, as disjoint runs."""
        each = [runs(r) for r in self.regions]
        return merged(np.concatenate([r[0] for r in each]), np.concatenate([r[1] for r in each]))

    def at(self, lo: int, hi: int) -> Side:
        """The first instruction that touches bytes of lo … hi."""
        for region, who in zip(self.regions, self.sides, strict=True):
            starts, ends = runs(region)
            if bool(((starts < hi) & (ends > lo)).any()):
                return who
        raise AssertionError("bytes that nobody touches")


class _Note(NamedTuple):
    """One access to an operand that the launch writes."""

    region: Region
    mode: Mode
    block: int
    phase: int
    who: Side


class GmTracker:
    """Visits the instructions of all blocks of a launch, phase by phase.

    Args:
        where: the kernel; spaces: which operands are watched.
        sizes: operand → bytes; names: operand → its name in findings.
        values: (block, operand) → the operand's bytes as the block leaves them: blocks may store
            the same numbers to the same place.
    """

    def __init__(
        self,
        where: str,
        spaces: Spaces,
        sizes: dict[int, int],
        names: dict[int, str],
        values: Callable[[int, int], np.ndarray],
        findings: Findings,
    ) -> None:
        self._names, self._values = names, values
        self._where, self._spaces, self._sizes = where, spaces, sizes
        self._findings = findings
        self._touched: dict[tuple[int, Mode], dict[int, _Touched]] = {}  # of this phase
        self._order: dict[int, list[_Note]] = {}  # of the launch
        self._phase = 0
        self.block = 0  #: the block whose instructions come now

    def __call__(self, step: Step, accesses: list[Access]) -> None:
        """Note an instruction's accesses to operands that the launch writes."""
        for access in accesses:
            if access.region.space != GM or not access.region.size:
                continue
            operand = access.region.operand
            out = out_of_bounds(
                f"{self._where}, block {self.block}",
                step,
                access,
                self._names.get(operand, f"GM operand {operand} (absent)"),
                self._sizes.get(operand, 0),
            )
            if out is not None:
                self._findings.add(out)
                continue
            place = self._spaces.find(step.actor[0], access.region)
            if place is None:
                continue
            (_, _, operand), region = place
            mode = access.mode
            who = side(step, VERBS[mode])
            blocks = self._touched.setdefault((operand, mode), {})
            mine = blocks.setdefault(self.block, _Touched())
            mine.regions.append(region)
            mine.sides.append(who)
            if access.region.operand == operand:  # an operand that lies there is initialised
                note = _Note(region, mode, self.block, self._phase, who)
                self._order.setdefault(operand, []).append(note)

    def end_phase(self) -> None:
        """All blocks have run: compare what they touched."""
        for first, second, kind in _PAIRS:
            for operand in self._spaces.watched:
                a = self._touched.get((operand, first), {})
                b = self._touched.get((operand, second), {})
                if a and b and len(a.keys() | b.keys()) > 1:
                    self._compare(operand, kind, a, b)
        self._touched.clear()
        self._phase += 1

    def end_launch(self) -> None:
        """Loads of what nothing stored; `end_phase` has seen to the order within a phase."""
        for operand, accesses in self._order.items():
            if all(note.mode is not Mode.READ for note in accesses):
                continue
            state = np.zeros(self._sizes[operand], np.uint8)
            for note in accesses:
                for start, end in zip(*runs(note.region), strict=True):
                    if note.mode is not Mode.READ:
                        state[start:end] = 1
                    elif not state[start:end].all():
                        gaps = np.flatnonzero(state[start:end] == 0) + int(start)
                        if not _stored_beside(accesses, note):  # a race, as reported
                            self._unwritten(operand, note, int(gaps[0]), int(gaps[-1]) + 1)
                        break

    def _unwritten(self, operand: int, note: _Note, lo: int, hi: int) -> None:
        name = self._spaces.watched[operand]
        self._findings.add(
            Finding(
                FindingKind.UNINITIALISED,
                f"{self._where}, block {note.block}",
                None,
                note.who,
                name,
                lo,
                hi - lo,
                f"a store to {name} before it, by this block or in an earlier phase",
            )
        )

    def _compare(
        self, operand: int, kind: FindingKind, a: dict[int, _Touched], b: dict[int, _Touched]
    ) -> None:
        """Report the first bytes that one block touches as in `a` and another as in `b`."""
        met = _first_meeting(
            [(block, *touched.bytes()) for block, touched in a.items()],
            [] if a is b else [(block, *touched.bytes()) for block, touched in b.items()],
        )
        if met is None:
            return
        if kind is FindingKind.WAW and a is b:
            met = self._unequal(operand, a)
            if met is None:
                return
        (one, two), (lo, hi) = met
        first, second = a[one], b[two]
        self._findings.add(
            Finding(
                kind,
                f"{self._where}, blocks {one} and {two}",
                first.at(lo, hi),
                second.at(lo, hi),
                self._spaces.watched[operand],
                lo,
                hi - lo,
                "an order between blocks: SyncAll (a phase of its own) between the two",
                "or let each block touch bytes of its own",
            )
        )

    def _unequal(self, operand: int, writers: dict[int, _Touched]) -> Meeting | None:
        """The first bytes that two blocks store with different values."""
        owner = np.full(self._sizes[operand], -1, np.int32)
        stored = np.zeros(self._sizes[operand], np.uint8)
        for block, touched in writers.items():
            values = self._values(block, operand)
            for lo, hi in zip(*touched.bytes(), strict=True):
                other = (owner[lo:hi] >= 0) & (stored[lo:hi] != values[lo:hi])
                if other.any():
                    first = int(owner[lo + np.flatnonzero(other)[0]])
                    at = lo + np.flatnonzero(owner[lo:hi] == first)
                    return (first, block), (int(at[0]), int(at[-1]) + 1)
                owner[lo:hi], stored[lo:hi] = block, values[lo:hi]
        return None


def _stored_beside(accesses: list[_Note], load: _Note) -> bool:
    """Whether another block of the phase stores some of what a load reads."""
    return any(
        note.mode is not Mode.READ
        and (note.phase == load.phase and note.block != load.block)
        and shared_bytes(note.region, load.region) is not None
        for note in accesses
    )


def _first_meeting(
    a: list[tuple[int, np.ndarray, np.ndarray]], b: list[tuple[int, np.ndarray, np.ndarray]]
) -> Meeting | None:
    """The first bytes that two blocks share.

    Runs of one block are disjoint; with `b`, only a run of `a` and one of `b` meet.
    """
    parts = [(block, side, s, e) for side, all_ in enumerate((a, b)) for block, s, e in all_]
    if not parts:
        return None
    starts, ends = (np.concatenate([p[i] for p in parts]) for i in (2, 3))
    owner = np.concatenate([np.full(len(p[2]), p[0]) for p in parts])
    which = np.concatenate([np.full(len(p[2]), p[1]) for p in parts])
    order = np.lexsort((ends, starts))
    starts, ends, owner, which = starts[order], ends[order], owner[order], which[order]
    reach = np.maximum.accumulate(ends)
    for i in np.flatnonzero(starts[1:] < reach[:-1]) + 1:
        for j in range(int(i) - 1, -1, -1):
            if reach[j] <= starts[i]:
                break
            if ends[j] > starts[i] and owner[j] != owner[i] and (not b or which[j] != which[i]):
                one, two = (j, i) if which[j] <= which[i] else (i, j)
                lo, hi = int(starts[i]), int(min(ends[i], ends[j]))
                return (int(owner[one]), int(owner[two])), (lo, hi)
    return None
