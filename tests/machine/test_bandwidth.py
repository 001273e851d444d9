"""The bandwidth server: max-min fair, work-conserving, exact to the cycle."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.machine.bandwidth import BandwidthServer, Flow, fill

Flows = list[tuple[float, int, float]]  # (cap, weight, share of HBM)

RATE = st.floats(0.5, 5000)
SHARE = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.001, 3))
FLOWS = st.lists(st.tuples(st.floats(0.5, 300), st.integers(1, 48), SHARE), min_size=1, max_size=8)
SLACK = 1 + 1e-6


def used(flows: Flows, rates: list[float]) -> tuple[float, float]:
    """Bytes a cycle taken from L2 and from HBM."""
    pairs = list(zip(flows, rates, strict=True))
    return sum(f[1] * r for f, r in pairs), sum(f[1] * f[2] * r for f, r in pairs)


@settings(max_examples=300, deadline=None)
@given(FLOWS, RATE, RATE)
def test_nothing_exceeds_its_limit(flows: Flows, l2: float, hbm: float) -> None:
    rates = fill(tuple(flows), l2, hbm)
    assert all(0 < r <= cap * SLACK for r, (cap, _, _) in zip(rates, flows, strict=True))
    from_l2, from_hbm = used(flows, rates)
    assert from_l2 <= l2 * SLACK
    assert from_hbm <= hbm * SLACK


@settings(max_examples=300, deadline=None)
@given(FLOWS, RATE, RATE)
def test_work_conserving_and_fair(flows: Flows, l2: float, hbm: float) -> None:
    """A flow below its cap is held by a full memory, and nobody in that memory is faster."""
    rates = fill(tuple(flows), l2, hbm)
    from_l2, from_hbm = used(flows, rates)
    l2_full, hbm_full = from_l2 >= l2 / SLACK, from_hbm >= hbm / SLACK
    for (cap, _, share), rate in zip(flows, rates, strict=True):
        if rate >= cap / SLACK:
            continue
        fastest = max(rates)
        fastest_miss = max((r for r, f in zip(rates, flows, strict=True) if f[2]), default=0.0)
        held_by_l2 = l2_full and rate >= fastest / SLACK
        held_by_hbm = hbm_full and share > 0 and rate >= fastest_miss / SLACK
        assert held_by_l2 or held_by_hbm


@settings(max_examples=200, deadline=None)
@given(FLOWS, RATE, RATE)
def test_order_does_not_matter_and_equals_are_equal(flows: Flows, l2: float, hbm: float) -> None:
    twice = [*flows, flows[0]]
    rates = fill(tuple(twice), l2, hbm)
    assert rates[0] == rates[-1]
    backwards = fill(tuple(reversed(twice)), l2, hbm)
    assert list(reversed(backwards)) == pytest.approx(rates, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.floats(0.5, 300), st.integers(2, 48), SHARE, RATE, RATE)
def test_a_weight_is_so_many_flows(
    cap: float, weight: int, share: float, l2: float, hbm: float
) -> None:
    (together,) = fill(((cap, weight, share),), l2, hbm)
    assert fill(((cap, 1, share),) * weight, l2, hbm) == pytest.approx([together] * weight)


def test_closed_forms() -> None:
    assert fill(((100.0, 4, 0.0),), 1000.0, 10.0) == [100.0]  # the ports
    assert fill(((100.0, 20, 0.0),), 1000.0, 10.0) == [50.0]  # L2
    assert fill(((100.0, 2, 0.5),), 1000.0, 10.0) == [10.0]  # HBM, half of the bytes
    # A miss is held by HBM; the hit takes what is left of L2, up to its port.
    assert fill(((100.0, 1, 1.0), (100.0, 1, 0.0)), 60.0, 20.0) == [20.0, 40.0]
    assert fill(((100.0, 1, 1.0), (30.0, 1, 0.0)), 60.0, 20.0) == [20.0, 30.0]


def drain(server: BandwidthServer) -> list[tuple[int, object]]:
    """(end, tag) of all flows, in order."""
    out: list[tuple[int, object]] = []
    while (end := server.next_end()) is not None:
        out += [(end, f.tag) for f in server.pop_ended(end)]
    return out


@pytest.mark.parametrize(("nbytes", "cycles"), [(1, 1), (64, 1), (65, 2), (128, 2), (1000, 16)])
def test_a_flow_ends_at_the_first_whole_cycle(nbytes: int, cycles: int) -> None:
    server = BandwidthServer(1000.0, 1000.0)
    server.add(5, Flow("a", nbytes, 1, 64.0, 1.0))
    assert drain(server) == [(5 + cycles, "a")]


def test_flows_join_and_leave() -> None:
    """100 B/cycle: a alone for 4 cycles, then half each, then a alone again."""
    server = BandwidthServer(100.0, 100.0)
    server.add(0, Flow("a", 1000, 1, 100.0, 1.0))
    server.add(4, Flow("b", 200, 1, 100.0, 1.0))
    assert drain(server) == [(8, "b"), (12, "a")]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 30000), st.integers(1, 12),
                  st.floats(1, 200), SHARE),
        min_size=1, max_size=8,
    ),
    RATE, RATE,
)  # fmt: skip
def test_everything_ends_no_sooner_than_its_limits(
    arrivals: list[tuple[int, int, int, float, float]], l2: float, hbm: float
) -> None:
    """Flows arriving in time order: each ends after its port's time, all after the memories'."""
    server, ends = BandwidthServer(l2, hbm), {}
    order = sorted(enumerate(arrivals), key=lambda a: a[1][0])
    for tag, (start, nbytes, weight, cap, share) in order:
        while (end := server.next_end()) is not None and end <= start:
            ends.update({f.tag: end for f in server.pop_ended(end)})
        server.add(start, Flow(tag, nbytes, weight, cap, share))
    ends.update({tag: end for end, tag in drain(server)})
    assert set(ends) == set(range(len(arrivals)))
    for tag, (start, nbytes, _, cap, _) in enumerate(arrivals):
        assert ends[tag] >= start + ceil(nbytes / cap * (1 - 1e-9) - 1e-6)
    first, last = order[0][1][0], max(ends.values())
    assert (last - first) * l2 * SLACK + 1 >= sum(n * w for _, n, w, _, _ in arrivals)
    assert (last - first) * hbm * SLACK + 1 >= sum(n * w * s for _, n, w, _, s in arrivals)
