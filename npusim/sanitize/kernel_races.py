"""Races between the pipes of a block: two instructions touch the same bytes in no order.

Of every region of a buffer the last access of every pipe is kept (as FastTrack keeps epochs: a
pipe's accesses are in order, so who comes after the last comes after all). An access is checked
against those of the other pipes that its clock does not know, newest first, so a kernel whose
flags are right costs next to nothing. Overlap is exact in bytes: strided regions that interleave
are no race.

On one pipe an instruction may read what the one before has not written yet: vector instructions
complete some cycles after the next one starts. That is a race too, unless a pipe barrier or enough
cycles of other work lie between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from npusim.program.access import Access, Mode
from npusim.program.isa import Kind, Pipe
from npusim.program.region import GM, Region
from npusim.sanitize.findings import Finding, FindingKind, Findings
from npusim.sanitize.overlap import Key, key_of, shared_bytes
from npusim.sanitize.walk import VERBS, Actor, Step, side

_NEVER = 1 << 62  #: a GM transfer is complete when a flag says so


class _Entry(NamedTuple):
    """The last access of one pipe, in one mode, to one region."""

    step: Step
    region: Region
    lo: int
    hi: int
    visible: int  #: cycle of the pipe from which the result is there


@dataclass(frozen=True)
class Spaces:
    """How regions of a block name memory.

    Attributes:
        cores: of the block. Each has buffers of its own; GM is one.
        watched: GM operands that are written: operand → name in findings.
        aliases: operand → (operand that lies in the same bytes, offset in it), for results in
            place of operands.
    """

    cores: int
    watched: dict[int, str]
    aliases: dict[int, tuple[int, int]]

    def find(self, core: int, region: Region) -> tuple[tuple[int, str, int], Region] | None:
        """Which memory a region lies in, and the region there; None for GM that none writes."""
        if region.space != GM:
            return (core, region.space, -1), region
        operand, shift = self.aliases.get(region.operand, (region.operand, 0))
        if operand not in self.watched:
            return None
        if operand != region.operand:
            region = Region(
                GM, operand, region.offset + shift, region.shape, region.strides, region.dtype
            )
        return (-1, GM, operand), region

    def name(self, space: tuple[int, str, int]) -> str:
        """The memory's name in findings."""
        core, name, operand = space
        if name == GM:
            return self.watched[operand]
        return name if self.cores == 1 else f"{name} of core {core}"


class RaceDetector:
    """Visits the instructions of one block (see `BlockWalk`)."""

    def __init__(self, where: str, spaces: Spaces, findings: Findings) -> None:
        self._where, self._spaces, self._findings = where, spaces, findings
        # memory → (pipe, mode) → region → last access, oldest first
        self._seen: dict[tuple[int, str, int], dict[tuple[Actor, Mode], dict[Key, _Entry]]] = {}

    def __call__(self, step: Step, accesses: list[Access]) -> None:
        """Check an instruction against those before it, then remember it."""
        found = []
        for access in accesses:
            place = self._spaces.find(step.actor[0], access.region)
            if place is not None and place[1].size:
                found.append((*place, access.mode))
        for space, region, mode in found:
            self._check(step, space, region, mode)
        ins = step.ins
        tail = _NEVER if ins.kind == Kind.GM else ins.tail
        visible = step.cycle + ins.occupy + tail
        for space, region, mode in found:
            group = self._seen.setdefault(space, {}).setdefault((step.actor, mode), {})
            key = key_of(region)
            group.pop(key, None)  # the newest last
            group[key] = _Entry(step, region, region.offset, region.end(), visible)

    def _check(self, step: Step, space: tuple[int, str, int], region: Region, mode: Mode) -> None:
        lo, hi = region.offset, region.end()
        for (actor, other), group in self._seen.get(space, {}).items():
            if not _conflict(other, mode, space[1] == GM):
                continue
            same = actor == step.actor
            if same and (mode is not Mode.READ or space[1] == GM):
                continue  # a pipe writes in order
            known = step.clock[actor]
            for entry in reversed(group.values()):
                if entry.step.time <= known or (same and entry.visible <= step.cycle):
                    break
                if entry.lo < hi and lo < entry.hi:
                    shared = shared_bytes(entry.region, region)
                    if shared is not None:
                        self._report(entry, step, space, (other, mode), shared)

    def _report(
        self,
        entry: _Entry,
        step: Step,
        space: tuple[int, str, int],
        modes: tuple[Mode, Mode],
        shared: tuple[int, int],
    ) -> None:
        if modes[0] is Mode.READ:
            kind = FindingKind.WAR
        else:
            kind = FindingKind.RAW if modes[1] is Mode.READ else FindingKind.WAW
        self._findings.add(
            Finding(
                kind,
                self._where,
                side(entry.step, VERBS[modes[0]]),
                side(step, VERBS[modes[1]]),
                self._spaces.name(space),
                *shared,
                _missing(entry.step, step),
            )
        )


def _conflict(first: Mode, second: Mode, gm: bool) -> bool:
    """Whether the order of two accesses matters: atomic additions into GM commute."""
    if first is Mode.READ and second is Mode.READ:
        return False
    return not (gm and first is Mode.ADD and second is Mode.ADD)


def _missing(first: Step, second: Step) -> str:
    """What would put them in order."""
    a, b = Pipe(first.actor[1]).name, Pipe(second.actor[1]).name
    if first.actor == second.actor and first.ins.kind != Kind.GM:
        return f"pipe_barrier({a}) before #{second.number}"
    if first.actor[0] == second.actor[0]:
        return (
            f"set_flag({a}, {b}) after #{first.number} and wait_flag({a}, {b}) before "
            f"#{second.number}"
        )
    return (
        f"CrossCoreSetFlag({a}, {b}) after #{first.number} of core {first.actor[0]} and "
        f"CrossCoreWaitFlag before #{second.number} of core {second.actor[0]}"
    )
