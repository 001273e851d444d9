"""What a sanitizer finds: a kind, two sides, bytes, and what is missing between the sides.

The same form serves instructions on the pipes of a core and tasks on the streams of a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum


class FindingKind(StrEnum):
    """What is wrong."""

    RAW = "read-after-write race"
    WAR = "write-after-read race"
    WAW = "write-after-write race"
    UNINITIALISED = "uninitialised read"
    OUT_OF_BOUNDS = "out of bounds"
    MISALIGNED = "misaligned"
    NEVER_SET = "flag waited for and never set"
    NEVER_WAITED = "flag set and never waited for"
    SET_TWICE = "flag set twice before a wait"
    REFUSED = "refused"


@dataclass(frozen=True)
class Side:
    """One of the two that meet: an instruction on a pipe, or a task on a stream.

    Attributes:
        actor: who does it: "MTE2", "core 1 V", "stream 0".
        what: mnemonic of the instruction, or name of the task.
        index: its number in the program of its core, or in the executable.
        access: "reads", "writes", "adds to", "sets", "waits".
        source: file and line of the kernel that issued it; '' where there is none.
    """

    actor: str
    what: str
    index: int
    access: str
    source: str = ""

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.actor} {self.access} at #{self.index} {self.what}{where}"


@dataclass(frozen=True)
class Finding:
    """One defect, in three lines.

    Attributes:
        kind: what is wrong (a `FindingKind`).
        where: kernel and block, or model.
        first: the earlier side; None when only one is involved; second: the other.
        space: "UB", "L1", … or "GM operand 2 (output 0)"; '' for flags.
        start, nbytes: the bytes in it.
        missing: what would have to be there: a flag, a barrier, an event, an initial write.
        hint: more that helps; may be ''.
        times: how often it occurs (other places in a loop, other bytes).
    """

    kind: FindingKind
    where: str
    first: Side | None
    second: Side | None
    space: str
    start: int
    nbytes: int
    missing: str
    hint: str = ""
    times: int = 1

    def __str__(self) -> str:
        bytes_ = f"{self.space} bytes {self.start}…{self.start + self.nbytes - 1}: "
        often = f" ({self.times} times)" if self.times > 1 else ""
        sides = ", then ".join(str(s) for s in (self.first, self.second) if s is not None)
        hint = f"; {self.hint}" if self.hint else ""
        return (
            f"{self.kind}: {bytes_ if self.space else ''}{self.where}{often}\n"
            f"between: {sides or '-'}\n"
            f"missing: {self.missing}{hint}"
        )

    def as_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return {**asdict(self), "kind": self.kind.value}


class Findings:
    """Collects findings; the same two places of a kernel count once."""

    def __init__(self) -> None:
        self._found: dict[object, Finding] = {}

    def add(self, finding: Finding) -> None:
        """Keep a finding, or count it where one like it is kept."""
        sides = [
            (s.actor, s.what, s.access, s.source) for s in (finding.first, finding.second) if s
        ]
        key = (finding.kind, finding.space, *sides)
        seen = self._found.get(key)
        if seen is not None:
            self._found[key] = replace(seen, times=seen.times + finding.times)
        else:
            self._found[key] = finding

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add several."""
        for finding in findings:
            self.add(finding)

    @property
    def all(self) -> list[Finding]:
        """In the order found."""
        return list(self._found.values())
