"""The chip's shared memory bandwidth: a max-min-fair fluid server over L2 and HBM.

A flow stands for the same transfer of `weight` identical cores. Each of them moves at one rate,
at most `cap` bytes a cycle (its port). The flows together take at most `l2_rate` from L2 and, for
the share of their bytes that misses, at most `hbm_rate` from HBM. Rates rise together until a
limit binds (progressive filling), and change only when a flow comes or goes. Where reads and
writes of HBM alternate, turning its bus around takes a share of the rate.

Time is whole cycles; a flow ends at the first whole cycle at which its bytes are through.
"""

from __future__ import annotations

from math import ceil

EPSILON = 1e-6  #: bytes below which a flow is through; far below one byte


class Flow:
    """One transfer in progress, of `weight` identical cores."""

    __slots__ = ("cap", "hbm_share", "rate", "remaining", "tag", "weight", "write")

    def __init__(
        self,
        tag: object,
        nbytes: float,
        weight: int,
        cap: float,
        hbm_share: float,
        write: bool = False,
    ) -> None:
        self.tag = tag
        self.remaining = float(nbytes)
        self.weight = weight
        self.cap = cap
        self.hbm_share = hbm_share
        self.write = write
        self.rate = 0.0


class BandwidthServer:
    """Shares L2 and HBM among flows.

    Life cycle: `add` a flow at a time; `next_end` tells when the next flow will be through if
    nothing changes; `pop_ended` at that time removes what is through.
    """

    def __init__(self, l2_rate: float, hbm_rate: float, turnaround: float = 0.0) -> None:
        self.l2_rate = l2_rate
        self.hbm_rate = hbm_rate
        self.turnaround = turnaround
        self.flows: list[Flow] = []
        self.time = 0
        self._allocations: dict[
            tuple[float, tuple[tuple[float, int, float], ...]], list[float]
        ] = {}

    def _advance(self, now: int) -> None:
        elapsed = now - self.time
        if elapsed:
            for f in self.flows:
                f.remaining -= f.rate * elapsed
            self.time = now

    def add(self, now: int, flow: Flow) -> None:
        """A flow starts at `now`."""
        self._advance(now)
        self.flows.append(flow)
        self._share()

    def next_end(self) -> int | None:
        """The whole cycle at which the next flow ends, None when there is none."""
        best: int | None = None
        for f in self.flows:
            t = self.time + max(0, ceil((f.remaining - EPSILON) / f.rate))
            if best is None or t < best:
                best = t
        return best

    def pop_ended(self, now: int) -> list[Flow]:
        """Remove and return the flows that are through at `now`, in order of arrival."""
        self._advance(now)
        ended = [f for f in self.flows if f.remaining <= EPSILON]
        if ended:
            self.flows = [f for f in self.flows if f.remaining > EPSILON]
            self._share()
        return ended

    def _share(self) -> None:
        flows = tuple((f.cap, f.weight, f.hbm_share) for f in self.flows)
        hbm_rate = self.hbm_rate
        if self.turnaround:
            hbm_rate /= 1 + self.turnaround * self._mix()
        key = (hbm_rate, flows)
        rates = self._allocations.get(key)
        if rates is None:
            rates = self._allocations[key] = fill(flows, self.l2_rate, hbm_rate)
        for f, r in zip(self.flows, rates, strict=True):
            f.rate = r

    def _mix(self) -> float:
        ways = [0.0, 0.0]
        for f in self.flows:
            ways[f.write] += f.weight * f.hbm_share
        return bus_turns(*ways)


def bus_turns(read: float, written: float) -> float:
    """How often HBM's bus turns: 0 where all bytes go one way, 1 from a third each on."""
    total = read + written
    return min(1.0, 3 * min(read, written) / total) if total else 0.0


def fill(
    flows: tuple[tuple[float, int, float], ...], l2_rate: float, hbm_rate: float
) -> list[float]:
    """Max-min-fair rates of flows (cap, weight, hbm_share) by progressive filling."""
    rates = [0.0] * len(flows)
    active = list(range(len(flows)))
    l2, hbm = l2_rate, hbm_rate
    level = 0.0
    while active:
        w_l2 = sum(flows[i][1] for i in active)
        w_hbm = sum(flows[i][1] * flows[i][2] for i in active)
        step = min(flows[i][0] for i in active) - level
        step = min(step, l2 / w_l2)
        if w_hbm > 0:
            step = min(step, hbm / w_hbm)
        step = max(step, 0.0)
        level += step
        l2 -= step * w_l2
        hbm -= step * w_hbm
        for i in active:
            rates[i] = level
        tight_l2 = l2 <= 1e-9 * l2_rate
        tight_hbm = hbm <= 1e-9 * hbm_rate
        active = [
            i
            for i in active
            if not (
                tight_l2 or (tight_hbm and flows[i][2] > 0) or level >= flows[i][0] * (1 - 1e-12)
            )
        ]
    return rates
