"""What kernels of several streams share: cores, the block scheduler, L2 and HBM.

Cores are given by priority, then in order of arrival: a kernel holds as many as it has blocks, from
the first block handed out to its end. It starts beside others where that many are free, and else
waits; nobody overtakes who wants the same kind of core. The part of its launch that needs no core
(`scheduler.launch`) may lie beside kernels of other streams. Blocks are handed out one at a time
for all streams together.

In *full* detail concurrent kernels share L2 and HBM transfer by transfer. In *fast* detail a kernel
is timed alone, and `KernelServer` stretches that time where kernels run side by side: each wants
the bytes per cycle that it moved alone, in the mean, and the memories share what they have among
the cores, max-min fair, as they do among transfers. Hence no memory runs above its rate, and
no kernel is quicker than alone.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from math import ceil

import simpy

from npusim.chip.spec import ChipSpec
from npusim.machine.bandwidth import EPSILON, bus_turns, fill
from npusim.machine.l2 import L2Cache
from npusim.program.cores import Cores, core_pools

_FULL = 1 + 1e-9  #: sums of rates this little above the peak are rounding


class CorePools:
    """The chip's cores. Life cycle: `take` some, wait for the event, `give` them back."""

    def __init__(self, env: simpy.Environment, chip: ChipSpec) -> None:
        self._env = env
        self._free = core_pools(chip)
        self._queue: list[tuple[int, int, Cores, simpy.Event]] = []
        self._count = 0

    def take(self, cores: Cores, priority: int = 0) -> simpy.Event:
        """An event that fires when the cores are the caller's; a lower priority number is first."""
        granted = self._env.event()
        self._count += 1
        insort(self._queue, (priority, self._count, cores, granted), key=lambda x: x[:2])
        self._grant()
        return granted

    def give(self, cores: Cores) -> None:
        """The cores are free again."""
        for kind, n in cores.items():
            self._free[kind] += n
        self._grant()

    def _grant(self) -> None:
        wanted: set[str] = set()  # kinds that somebody before waits for
        waiting = []
        for i, waiter in enumerate(self._queue):
            if len(wanted) == len(self._free):  # nobody behind can overtake
                waiting += self._queue[i:]
                break
            _, _, cores, granted = waiter
            fits = all(self._free[kind] >= n for kind, n in cores.items())
            if fits and not wanted & cores.keys():
                for kind, n in cores.items():
                    self._free[kind] -= n
                granted.succeed()
            else:
                wanted |= cores.keys()
                waiting.append(waiter)
        self._queue = waiting


@dataclass(eq=False)
class _Running:
    """A kernel in progress.

    Attributes:
        remaining: cycles that it would still take alone; speed: of them per cycle, at most 1.
        flow: bytes per cycle and core that it moves alone, its cores, HBM bytes per byte.
        written: part of its HBM bytes that are written.
    """

    done: simpy.Event
    remaining: float
    flow: tuple[float, int, float]
    written: float
    speed: float = 1.0


class KernelServer:
    """Kernels timed alone, stretched while they want more than the memories have."""

    def __init__(self, env: simpy.Environment, chip: ChipSpec) -> None:
        self._env = env
        self._l2 = chip.l2_rate
        self._hbm = chip.hbm_rate
        self._turnaround = chip.hbm.turnaround or 0.0
        self._running: list[_Running] = []
        self._time = 0
        self._version = 0

    def run(
        self, cycles: int, cores: int, l2_bytes: float, hbm_bytes: float, written: float
    ) -> simpy.Event:
        """An event that fires when a kernel is over that takes `cycles` alone on `cores`.

        Args:
            written: the part of `hbm_bytes` that is written.
        """
        self._advance()
        done = self._env.event()
        rate = l2_bytes / cycles / cores if cycles else 0.0
        share = hbm_bytes / l2_bytes if l2_bytes else 0.0
        self._running.append(_Running(done, float(cycles), (rate, cores, share), written))
        self._share()
        return done

    def _advance(self) -> None:
        now = int(self._env.now)
        for kernel in self._running:
            kernel.remaining -= kernel.speed * (now - self._time)
        self._time = now

    def _share(self) -> None:
        """New speeds, and a timer for the next end."""
        moving = [k for k in self._running if k.flow[0] > 0]
        l2 = sum(k.flow[0] * k.flow[1] for k in moving)
        hbm = [k.flow[0] * k.flow[1] * k.flow[2] for k in moving]
        writes = sum(n * k.written for n, k in zip(hbm, moving, strict=True))
        turns = bus_turns(sum(hbm) - writes, writes)
        hbm_rate = self._hbm / (1 + self._turnaround * turns)
        fits = len(moving) < 2 or (l2 <= self._l2 * _FULL and sum(hbm) <= hbm_rate * _FULL)
        rates = [k.flow[0] for k in moving]
        if not fits:
            rates = fill(tuple(k.flow for k in moving), self._l2, hbm_rate)
        for kernel, rate in zip(moving, rates, strict=True):
            kernel.speed = min(1.0, rate / kernel.flow[0])
        self._version += 1
        if self._running:
            ends = (ceil((k.remaining - EPSILON) / k.speed) for k in self._running)
            timer = self._env.timeout(max(0, min(ends)), self._version)
            timer.callbacks.append(self._expire)

    def _expire(self, timer: simpy.Event) -> None:
        if timer.value != self._version:
            return  # a kernel came since: another timer stands
        self._advance()
        ended = [k for k in self._running if k.remaining <= EPSILON]
        self._running = [k for k in self._running if k.remaining > EPSILON]
        for kernel in ended:
            kernel.done.succeed()
        self._share()


class Shared:
    """What the streams of a device share.

    Attributes:
        several: kernels of several streams may run side by side.
    """

    def __init__(self, env: simpy.Environment, chip: ChipSpec) -> None:
        self.cores = CorePools(env, chip)
        self.kernels = KernelServer(env, chip)
        self.l2 = L2Cache(chip.l2.size)
        self.several = False
        self._env = env
        self._handed_out = 0  # when the block scheduler is through with all that it was given

    def hand_out(self, cycles: int) -> int:
        """Hand out blocks, which takes so long, after those given before; the cycles from now."""
        now = int(self._env.now)
        self._handed_out = max(now, self._handed_out) + cycles
        return self._handed_out - now
