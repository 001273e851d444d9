"""Page walks: distinct pages beyond what the TLB holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from npusim.api import compile_graph
from npusim.chip import load_chip
from npusim.ir import DType
from npusim.machine.entries import Range
from npusim.machine.loaded import LoadedExecutable
from npusim.machine.tlb import page_walks
from npusim.models.builder import GraphBuilder

CHIP = load_chip("ascend910a", ["tlb.entries=100", "tlb.walk=1 us", "tlb.walkers=4"])
NBYTES = 1 << 20  #: of each operand: 256 pages of 4 KiB


@dataclass(frozen=True)
class AllPages:
    """Memory of which every page has one size."""

    size: int

    def check(self, who: str, reads: Sequence[Range], writes: Sequence[Range]) -> None:
        """All is allowed."""

    def page_bytes(self, address: int) -> int:
        """The size."""
        return self.size


def walks(page: int, out: int, start: int = 0) -> float:
    """Microseconds that a Relu waits for, with its result `out` bytes behind its operand."""
    g = GraphBuilder("relu", DType.FLOAT16)
    g.output(g.node("Relu", "relu", g.input("x", (1024, 512)), out="y"))
    exe = compile_graph(g.finish(), CHIP)
    moved = {"x": start, "y": start + out}
    home = LoadedExecutable(exe, moved=moved, memory=AllPages(page))
    return round(CHIP.seconds(page_walks(CHIP, home, exe.tasks[0])) * 1e6, 3)


@pytest.mark.parametrize(
    ("page", "out", "start", "pages"),
    [
        (4096, NBYTES, 0, 512),
        (4096, NBYTES, 1, 513),  # both begin inside a page, the last ends in one more
        (4096, 0, 0, 256),  # in place: each page once
        (4096, NBYTES // 2, 0, 384),  # half of them shared
        (65536, NBYTES, 0, 32),  # all within reach
        (2 << 20, NBYTES, 0, 1),
    ],
)
def test_pages_count_once_and_walks_go_side_by_side(
    page: int, out: int, start: int, pages: int
) -> None:
    assert walks(page, out, start) == max(0, pages - 100) / 4


def test_a_plan_of_its_own_is_in_huge_pages() -> None:
    g = GraphBuilder("relu", DType.FLOAT16)
    g.output(g.node("Relu", "relu", g.input("x", (1024, 512)), out="y"))
    exe = compile_graph(g.finish(), CHIP)
    assert page_walks(CHIP, LoadedExecutable(exe), exe.tasks[0]) == 0
