"""The host: what it does, step by step, to keep the device busy.

*Eager*: the host enqueues the tasks one by one, each at `host.enqueue` (dispatch, tiling, launch),
and may fall behind the device; a full queue stops it. *Graph*: the model's tasks are on the device
(sunk); the host launches the whole graph, `sink_size` steps at a time, at `host.graph_launch`. At
the end of every launch it waits for the device, as a program does that looks at the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.errors import UnsupportedError
from npusim.machine.device import Device
from npusim.machine.entries import TaskEntry
from npusim.machine.host_thread import Calls, HostThread
from npusim.machine.loaded import LoadedExecutable
from npusim.timeline import HostUse

Exec = Literal["eager", "graph"]


@dataclass(frozen=True)
class HostPlan:
    """How the host runs a model.

    Attributes:
        exec: "eager", "graph", or None: the device alone, everything queued at the start.
        steps: executions of the model; sink_size: of them per launch (graph).

    Raises:
        UnsupportedError: less than one step; steps sunk in eager mode.
    """

    exec: Exec | None = None
    steps: int = 1
    sink_size: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1 or self.sink_size < 1:
            raise UnsupportedError(
                f"{self.steps} steps, {self.sink_size} of them per launch",
                "1 or more of each",
                "choose 1 or more",
            )
        if self.sink_size > 1 and self.exec != "graph":
            raise UnsupportedError(
                f"sink size {self.sink_size} without a graph on the device",
                "sink size 1, or graph execution",
                "choose --exec graph to launch several steps at once",
            )


class HostProcess:
    """The host as a process beside the device's. Life cycle: construct, run the device, `use`.

    Args:
        keep: keep what the host did as spans.
    """

    def __init__(
        self, device: Device, loaded: LoadedExecutable, plan: HostPlan, keep: bool = True
    ) -> None:
        self._device, self._loaded, self._plan = device, loaded, plan
        self._thread = HostThread(device, keep)
        chip = device.chip
        self._enqueue = chip.cycles(chip.host.enqueue)
        self._graph_launch = chip.cycles(chip.host.graph_launch)
        self._numbers = sorted({task.stream for task in loaded.exe.tasks})
        for number in self._numbers:
            device.stream(number)
        device.env.process(self._run())

    def use(self) -> HostUse | None:
        """What the host's time went to; None when there is no host in the plan."""
        plan = self._plan
        return None if plan.exec is None else self._thread.use(plan.exec, plan.sink_size)

    def _run(self) -> Calls:
        plan, thread = self._plan, self._thread
        if plan.exec == "eager":
            for step in range(plan.steps):
                for number, entry in self._loaded.entries(self._device.env, step):
                    is_task = isinstance(entry, TaskEntry)
                    yield from thread.submit(number, entry, self._enqueue if is_task else None)
                yield from thread.synchronize(self._numbers, f"step {step}")
            return
        for first in range(0, plan.steps, plan.sink_size):
            last = min(first + plan.sink_size, plan.steps)
            sunk = self._sink(range(first, last))
            if plan.exec is None:
                yield from sunk
            else:
                yield from thread.spend(self._graph_launch, f"launch {self._loaded.exe.name}")
                yield from thread.wait(sunk, f"steps {first} to {last - 1}")

    def _sink(self, steps: range) -> Calls:
        """The steps are on the device: queued as it goes, never so late that it would wait.

        Gives what happens meanwhile, up to the end of the last step.
        """
        for step in steps:
            entries = list(self._loaded.entries(self._device.env, step))
            if step > steps.start:
                entries = [*self._loaded.join(self._device.env), *entries]
            for number in self._numbers:
                yield self._device.stream(number).room(max(1, len(entries)))
            for number, entry in entries:
                self._device.submit(number, entry)
        for number in self._numbers:
            yield self._device.stream(number).drained()
            self._device.synchronised(number)
