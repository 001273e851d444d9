"""Workers on the host: CPU cores that take jobs in order, beside the device."""

from __future__ import annotations

from heapq import heappop, heappush

import simpy

from npusim.machine.device import Device


class HostWorkers:
    """So many CPU cores. Life cycle: construct, `submit` jobs at the device's time.

    Attributes:
        busy: cycles of all jobs submitted.
    """

    def __init__(self, device: Device, count: int) -> None:
        self.busy = 0
        self._device = device
        self._free = [device.now] * count  # when each is free again: a heap

    def submit(self, cycles: int) -> simpy.Event:
        """A job for whichever worker is free first; fires when it is done."""
        now = self._device.now
        end = max(now, heappop(self._free)) + cycles
        heappush(self._free, end)
        self.busy += cycles
        return self._device.env.timeout(end - now)
