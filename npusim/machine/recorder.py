"""What is kept of a run: every op, or their sums."""

from __future__ import annotations

from typing import Protocol

from npusim.timeline import OpRecord, OpTotals, check_op


class Recorder(Protocol):
    """Takes records as they are made."""

    @property
    def count(self) -> int:
        """Records taken."""

    def add(self, record: OpRecord) -> None:
        """Take one."""

    def ops(self) -> tuple[OpRecord, ...]:
        """Those that are kept, in order of start."""

    def totals(self) -> tuple[OpTotals, ...]:
        """Sums of those that are not kept."""


class KeepAll:
    """Every record, as it is."""

    def __init__(self) -> None:
        self._records: list[OpRecord] = []

    @property
    def count(self) -> int:
        """Records taken."""
        return len(self._records)

    def add(self, record: OpRecord) -> None:
        """Take one."""
        self._records.append(record)

    def ops(self) -> tuple[OpRecord, ...]:
        """All of them, in order of start."""
        return tuple(sorted(self._records, key=lambda r: (r.start, r.stream)))

    def totals(self) -> tuple[OpTotals, ...]:
        """None: nothing is summed up."""
        return ()


class KeepTotals:
    """Sums by kind of op: memory stays the same however long the run. Each record is checked.

    What only a whole timeline can show (the rate at which several ops move bytes together) is not
    checked.
    """

    def __init__(self) -> None:
        self.count = 0
        self._totals: dict[tuple[str, str, str], OpTotals] = {}
        self._ends: dict[int, int] = {}

    def add(self, record: OpRecord) -> None:
        """Check a record and add it to its kind."""
        check_op(record, self._ends)
        self.count += 1
        key = (record.op_type, record.kernel, record.core_type)
        totals = self._totals.get(key)
        if totals is None:
            totals = self._totals[key] = OpTotals(*key)
        totals.add(record)

    def ops(self) -> tuple[OpRecord, ...]:
        """None is kept."""
        return ()

    def totals(self) -> tuple[OpTotals, ...]:
        """Sums, the longest first."""
        return tuple(sorted(self._totals.values(), key=lambda t: -t.cycles))
