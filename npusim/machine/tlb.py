"""The cost of translating addresses: page walks beyond what the TLB holds."""

from __future__ import annotations

from npusim.chip.spec import ChipSpec
from npusim.machine.loaded import LoadedExecutable
from npusim.program.executable import Task


def page_walks(chip: ChipSpec, home: LoadedExecutable, task: Task) -> int:
    """Cycles that a launch waits for page walks.

    Of the distinct pages that a launch touches, those beyond `tlb.entries` are walked,
    `tlb.walkers` side by side. A plan that has the device to itself is in huge pages and free.
    """
    if home.memory is None:
        return 0
    beyond = max(0, _pages(home, task) - chip.tlb.entries)
    return chip.cycles(beyond * chip.tlb.walk / chip.tlb.walkers)


def _pages(home: LoadedExecutable, task: Task) -> int:
    """Pages that a task touches, each counted once."""
    assert home.memory is not None
    spans = []
    for address, nbytes in (*home.reads(task), *home.writes(task)):
        page = home.memory.page_bytes(address)
        spans.append((page, address // page, -(-(address + nbytes) // page)))
    count, reached, size = 0, 0, 0
    for page, first, last in sorted(spans):
        if page != size:
            reached, size = 0, page
        count += max(0, last - max(first, reached))
        reached = max(reached, last)
    return count
