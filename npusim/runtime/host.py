"""The host program's own clock: what its calls of the runtime cost it, and what it waits for."""

from __future__ import annotations

from npusim.chip.spec import ChipSpec
from npusim.timeline import HostUse, Span


class HostClock:
    """Cycles of the device's clock that the host program has been through.

    All threads of the program share it. Between calls of the runtime no time passes.

    Attributes:
        now: in cycles.
    """

    def __init__(self, chip: ChipSpec) -> None:
        self.now = 0
        self._chip = chip
        self._busy = self._full = self._waiting = 0
        self._spans: list[Span] = []

    def spend(self, seconds: float, name: str) -> None:
        """The host is at work in a call."""
        cycles = self._chip.cycles(seconds)
        self._note(name, self.now + cycles)
        self._busy += cycles
        self.now += cycles

    def wait(self, cycle: int, name: str) -> None:
        """The host waits for the device until a cycle; nothing when that is past."""
        self._note(name, cycle)
        self._waiting += max(0, cycle - self.now)
        self.now = max(self.now, cycle)

    def wait_for_room(self, cycle: int) -> None:
        """The host waits until a stream's queue has room."""
        self._note("queue full", cycle)
        self._full += max(0, cycle - self.now)
        self.now = max(self.now, cycle)

    def use(self) -> HostUse:
        """What its time went to."""
        spans = tuple(self._spans)
        return HostUse("program", 1, self.now, self._busy, self._full, self._waiting, spans)

    def _note(self, name: str, end: int) -> None:
        if end > self.now:
            self._spans.append(Span("host", name, self.now, end))
