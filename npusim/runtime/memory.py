"""Device memory: allocations at addresses, each with its bytes, and what is wrong with a use.

Addresses are never given twice, so that a use of freed memory is always found. An allocation is
rounded up to 32 B and, by default, followed by 32 B more (as `aclrtMalloc` does): what is written
there is an overrun, told by the next synchronisation or by the free.
"""

from __future__ import annotations

import mmap
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npusim.machine.entries import DeviceFaultError, Range
from npusim.runtime.codes import Code
from npusim.runtime.errors import InvalidUseError, OutOfMemoryError, TaskFailedError
from npusim.runtime.pages import HUGE, NORMAL, MemPolicy, Pages

BASE = 0x1240_0000_0000  #: the first address of device 0; no pointer of the host's is there
SPACE = 1 << 41  #: bytes of addresses of a device; those of the next one follow
ALIGN = 32
_SPARSE = 64 << 20  #: from here on bytes are mapped, not allocated
_MAP_NORESERVE = 0x4000  #: of Linux; Python names it from 3.13 on
_LISTED = 12  #: allocations in a map, the largest


@dataclass(eq=False)
class Allocation:
    """A piece of device memory.

    Attributes:
        nbytes: asked for; held: with alignment and guard.
        page: bytes of its pages; by: the call that made it; freed_by: that freed it, '' so far.
        data: its bytes, None once freed.
    """

    address: int
    nbytes: int
    held: int
    page: int
    policy: MemPolicy
    by: str
    data: np.ndarray | None
    freed_by: str = ""
    overrun: str = ""

    def __str__(self) -> str:
        pages = "huge" if self.page == HUGE else "normal"
        return (
            f"{self.address:#x} {self.nbytes:>13,} B  {self.policy.name:<11} {pages:<6} "
            f"pages  {self.by}"
        )


class DeviceMemory:
    """The device's memory. Life cycle: construct, `allocate` and `free`, `leaks` at the end.

    Args:
        size: in bytes; name, number: the device's.
    """

    def __init__(self, size: int, name: str, number: int = 0) -> None:
        self._pages = Pages(size)
        self._name = name
        self._base = self._next = BASE + number * SPACE
        self._starts: list[int] = []
        self._all: list[Allocation] = []
        self._overrun: list[Allocation] = []

    # -- allocation ------------------------------------------------------------------------

    def allocate(
        self, nbytes: int, policy: MemPolicy, by: str, *, guard: int = ALIGN
    ) -> Allocation:
        """Memory of `nbytes`, zero at first.

        Args:
            by: who asks, for the map and the leaks. guard: bytes behind it.

        Raises:
            InvalidUseError: no bytes asked for. OutOfMemoryError: not so many pages are free.
        """
        if nbytes <= 0:
            raise InvalidUseError(
                Code.RT_PARAM_INVALID, f"an allocation of {nbytes} B", "1 B or more", "ask for some"
            )
        held = -(-nbytes // ALIGN) * ALIGN + guard
        page = self._pages.take(held, policy, nbytes)
        if not page:
            raise self._full(nbytes, policy, by)
        address = -(-self._next // page) * page
        made = Allocation(address, nbytes, held, page, policy, by, _zeros(held))
        # A page stays unused between two allocations: what runs over one is not in the next.
        self._next = address + (-(-held // page) + 1) * page
        self._starts.append(made.address)
        self._all.append(made)
        return made

    def free(self, address: int, by: str) -> None:
        """Give an allocation back.

        Raises:
            InvalidUseError: no allocation starts there, or it is freed.
            TaskFailedError: it was overrun.
        """
        found = self._near(address)
        if found is None or found.address != address or found.data is None:
            raise self._not_freed(address, found)
        found.data, found.freed_by = None, by
        self._pages.give(found.held, found.page)
        if found in self._overrun:
            self._overrun.remove(found)
            raise _overrun(found)

    @property
    def live(self) -> list[Allocation]:
        """What is allocated, in order of address."""
        return [a for a in self._all if a.data is not None]

    def info(self, page: int = 0) -> tuple[int, int]:
        """Free bytes and bytes in all; of huge or normal pages alone when `page` is their size."""
        free = self._pages.free_huge if page == HUGE else self._pages.free
        return free, self._pages.size

    def map(self) -> str:
        """What is allocated, the largest first, a line each."""
        live = sorted(self.live, key=lambda a: -a.nbytes)
        lines = [f"  {a}" for a in live[:_LISTED]]
        if len(live) > _LISTED:
            lines.append(f"  and {len(live) - _LISTED} smaller ones")
        return "\n".join(lines) or "  nothing"

    # -- use -------------------------------------------------------------------------------

    def owns(self, address: int) -> bool:
        """Whether an address is of the device's, allocated or not."""
        return self._base <= address < self._base + SPACE

    def view(self, address: int, nbytes: int) -> np.ndarray | None:
        """The bytes of a range; None when it is not allocated as a whole."""
        found = self._near(address)
        if found is None or found.data is None or address + nbytes > found.address + found.held:
            return None
        offset = address - found.address
        return found.data[offset : offset + nbytes]

    def check(self, who: str, reads: Sequence[Range], writes: Sequence[Range]) -> None:
        """Whether an AI Core task may touch these ranges; its overruns are kept.

        Raises:
            DeviceFaultError: some of it is not allocated.
        """
        for verb, ranges in (("reads", reads), ("writes", writes)):
            for address, nbytes in ranges:
                problem = self.problem(address, nbytes)
                if problem:
                    raise DeviceFaultError(
                        Code.RT_AICORE_EXCEPTION, f"task {who!r} {verb} {nbytes} B at {problem}"
                    )
        for address, nbytes in writes:
            self.note_write(who, address, nbytes)

    def problem(self, address: int, nbytes: int) -> str:
        """What is wrong with a use of a range; '' when nothing is."""
        found = self._near(address)
        if found is None:
            return f"{address:#x}, which was never allocated"
        end = found.address + found.held
        what = f"{found.nbytes} B at {found.address:#x} that {found.by} allocated"
        if address < end and found.data is None:
            return f"{address:#x}, in {what} and {found.freed_by} freed"
        if address + nbytes > end:
            over = address + nbytes - found.address - found.nbytes
            return f"{address:#x}, {over} B past the end of {what}"
        return ""

    def note_write(self, who: str, address: int, nbytes: int) -> None:
        """Keep in mind when somebody writes behind what was asked for."""
        found = self._near(address)
        if found is None or found.overrun or found in self._overrun:
            return
        aligned = -(-found.nbytes // ALIGN) * ALIGN
        if address + nbytes > found.address + aligned:
            found.overrun = f"{who!r} wrote {nbytes} B at {address:#x}"
            self._overrun.append(found)

    def check_guards(self) -> None:
        """Tell of an overrun since the last time.

        Raises:
            TaskFailedError: something was written behind an allocation.
        """
        if self._overrun:
            raise _overrun(self._overrun.pop(0))

    def page_bytes(self, address: int) -> int:
        """Size of the page at an address."""
        found = self._near(address)
        return NORMAL if found is None else found.page

    def _near(self, address: int) -> Allocation | None:
        """The last allocation that starts at or before an address."""
        at = bisect_right(self._starts, address)
        return self._all[at - 1] if at else None

    # -- errors ----------------------------------------------------------------------------

    def _full(self, nbytes: int, policy: MemPolicy, by: str) -> OutOfMemoryError:
        only_huge = policy is MemPolicy.HUGE_ONLY and nbytes <= self._pages.free
        code = Code.RT_MEMORY_ALLOCATION if only_huge else Code.RT_DEVICE_OOM
        free = self._pages.free_huge if policy is MemPolicy.HUGE_ONLY else self._pages.free
        return OutOfMemoryError(
            code,
            f"{by} asks for {nbytes:,} B ({policy.name}) on {self._name}, {free:,} B are free; "
            f"allocated:\n{self.map()}",
            f"{self._pages.size:,} B in all (hbm.size)",
            "free what is not needed, or use HUGE_FIRST where huge pages alone do not suffice",
        )

    def _not_freed(self, address: int, found: Allocation | None) -> InvalidUseError:
        what = f"a free of {address:#x}, where no allocation starts"
        if found is not None and found.address == address:
            what = f"a second free of {address:#x}: {found.by} allocated, {found.freed_by} freed it"
        elif found is not None and found.data is not None and address < found.address + found.held:
            what = f"a free of {address:#x}, inside {found.nbytes} B at {found.address:#x}"
        return InvalidUseError(
            Code.RT_PARAM_INVALID, what, "the address that malloc gave, once", "free it once"
        )


def _zeros(nbytes: int) -> np.ndarray:
    """Zeros that take memory of the host when they are touched, however many there are."""
    if nbytes < _SPARSE or sys.platform != "linux":
        return np.zeros(nbytes, np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)


def _overrun(found: Allocation) -> TaskFailedError:
    return TaskFailedError(
        Code.RT_DEVICE_MEM_ERROR,
        f"the guard behind {found.nbytes} B at {found.address:#x} ({found.by}) was overwritten: "
        f"{found.overrun}",
        "writes within what was allocated",
        "allocate as many bytes as the task writes",
    )
