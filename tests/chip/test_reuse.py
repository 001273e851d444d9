"""Results that hold for other chips."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from npusim.chip import ChipSpec, load_chip
from npusim.chip.reuse import Reuse

BASE = load_chip("ascend910a")
WIDE = load_chip("ascend910a", ["hbm.bandwidth=2.4TB/s"])
SLOW = load_chip("ascend910a", ["clock=0.5GHz", "l2.size=16MiB"])
HALF = load_chip("ascend910a", ["clock=0.5GHz", "hbm.bandwidth=0.6TB/s"])
SMALL_CUBE = load_chip("ascend910a", ["core.cube.k.float16=8"])
SPLIT = load_chip("ascend910b1")


def counted(read: Callable[[ChipSpec], object]) -> tuple[Callable[[ChipSpec], object], list[str]]:
    """A computation, and the chips for which it ran."""
    ran: list[str] = []

    def compute(chip: ChipSpec) -> object:
        ran.append("once")
        return read(chip)

    return compute, ran


@pytest.mark.parametrize(
    ("read", "same", "other"),
    [
        (lambda c: c.core.ub.size, WIDE, load_chip("ascend910a", ["core.ub.size=128KiB"])),
        (lambda c: c.hbm_rate, load_chip("ascend910a", ["l2.size=8MiB"]), WIDE),
        # half the clock at half the bandwidth: as many bytes a cycle
        (lambda c: c.hbm_rate, HALF, SLOW),
        (lambda c: c.cycles(1e-6), WIDE, SLOW),
        (lambda c: c.with_cores(4).cores.count + c.with_cores(8).core.l1.size, SLOW,
         load_chip("ascend910a", ["core.l1.size=2MiB"])),
        (lambda c: c.core.fixp is None, SLOW, SPLIT),
        (lambda c: c.core.fixp and c.core.fixp.rate, WIDE, SPLIT),
        (lambda c: c.core.cube.k["float16"], WIDE, SMALL_CUBE),
    ],
)  # fmt: skip
def test_a_result_holds_where_the_same_is_seen(
    read: Callable[[ChipSpec], object], same: ChipSpec, other: ChipSpec
) -> None:
    reuse = Reuse()
    compute, ran = counted(read)
    for chip, times in ((BASE, 1), (same, 1), (other, 2), (BASE, 2), (other, 2)):
        assert reuse.get("x", chip, compute) == read(chip)
        assert len(ran) == times
    assert (reuse.hits, reuse.misses) == (3, 2)


def test_what_it_is_asked_tells_results_apart() -> None:
    reuse = Reuse()
    assert reuse.get("a", BASE, lambda c: 1) == 1
    assert reuse.get("b", BASE, lambda c: 2) == 2


def test_a_computation_within_another_is_seen_by_it() -> None:
    """Also where the inner one is taken from before, or fails."""
    reuse = Reuse()
    inner, ran = counted(lambda c: c.core.ub.size)
    outer = lambda c: reuse.get("inner", c, inner)  # noqa: E731
    small = load_chip("ascend910a", ["core.ub.size=128KiB"])
    assert reuse.get("inner", BASE, inner) == BASE.core.ub.size
    assert reuse.get("outer", BASE, outer) == BASE.core.ub.size and len(ran) == 1
    assert reuse.get("outer", small, outer) == small.core.ub.size

    def failing(chip: ChipSpec) -> int:
        raise ValueError(chip.clock)

    def caught(chip: ChipSpec) -> object:
        with pytest.raises(ValueError) as error:
            reuse.get("failing", chip, failing)
        return error.value.args[0]

    assert [reuse.get("caught", c, caught) for c in (BASE, SLOW)] == [1e9, 0.5e9]


def test_a_chip_derived_within_is_seen_through() -> None:
    reuse = Reuse()
    half = lambda c: reuse.get("half", c.with_cores(16), lambda f: f.core.ub.size)  # noqa: E731
    for chip in (BASE, load_chip("ascend910a", ["core.ub.size=128KiB"]), WIDE):
        assert reuse.get("outer", chip, half) == chip.core.ub.size
