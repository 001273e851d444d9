"""The host: what it does, step by step, to keep the device busy.

*Eager*: the host enqueues the tasks one by one, each at `host.enqueue` (dispatch, tiling, launch),
and may fall behind the device; a full queue stops it. *Graph*: the model's tasks are on the device
(sunk); the host launches the whole graph, `sink_size` steps at a time, at `host.graph_launch`. At
the end of every launch it waits for the device, as a program does that looks at the result.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import simpy

from npusim.errors import UnsupportedError
from npusim.machine.device import Device
from npusim.machine.entries import TaskEntry
from npusim.machine.loaded import LoadedExecutable
from npusim.timeline import HostUse, Span

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
        self._device, self._loaded, self._plan, self._keep = device, loaded, plan, keep
        self._spans: list[Span] = []
        self._busy = self._full = self._waiting = 0
        chip = device.chip
        self._enqueue = chip.cycles(chip.host.enqueue)
        self._graph_launch = chip.cycles(chip.host.graph_launch)
        self._sync = chip.cycles(chip.host.sync)
        self._call = chip.cycles(chip.host.call)
        self._depth = chip.scheduler.queue_depth
        self._numbers = sorted({task.stream for task in loaded.exe.tasks})
        for number in self._numbers:
            device.stream(number)
        self._end = 0
        device.env.process(self._run())

    def use(self) -> HostUse | None:
        """What the host's time went to; None when there is no host in the plan."""
        if self._plan.exec is None:
            return None
        return HostUse(
            self._plan.exec, self._plan.sink_size, self._end,
            self._busy, self._full, self._waiting, tuple(self._spans),
        )  # fmt: skip

    def _run(self) -> Generator[simpy.Event, Any, None]:
        plan = self._plan
        if plan.exec == "eager":
            for step in range(plan.steps):
                yield from self._step(step)
                yield from self._wait(f"step {step}", self._device.now)
        else:
            for first in range(0, plan.steps, plan.sink_size):
                last = min(first + plan.sink_size, plan.steps)
                if plan.exec is not None:
                    yield from self._spend(self._graph_launch, f"launch {self._loaded.exe.name}")
                launched = self._device.now
                yield from self._sink(range(first, last))
                if plan.exec is not None:
                    yield from self._wait(f"steps {first} to {last - 1}", launched)
        self._end = self._device.now

    def _step(self, step: int) -> Generator[simpy.Event, Any, None]:
        """Enqueue a step op by op."""
        for number, entry in self._loaded.entries(self._device.env, step):
            since = self._device.now
            yield self._device.stream(number).room(self._depth)
            self._full += self._device.now - since
            self._note("queue full", since)
            is_task = isinstance(entry, TaskEntry)
            yield from self._spend(self._enqueue if is_task else self._call, entry.name)
            self._device.submit(number, entry)

    def _sink(self, steps: range) -> Generator[simpy.Event, Any, None]:
        """The steps are on the device: queued as it goes, never so late that it would wait."""
        for step in steps:
            entries = list(self._loaded.entries(self._device.env, step))
            if step > steps.start:
                entries = [*self._loaded.join(self._device.env), *entries]
            for number in self._numbers:
                yield self._device.stream(number).room(max(1, len(entries)))
            for number, entry in entries:
                self._device.submit(number, entry)

    def _wait(self, name: str, since: int) -> Generator[simpy.Event, Any, None]:
        """Until all streams are over; the host has waited since a time."""
        for number in self._numbers:
            yield self._device.stream(number).drained()
            self._device.synchronised(number)
        yield self._device.env.timeout(self._sync)
        self._waiting += self._device.now - since
        self._note(f"synchronize {name}", since)

    def _spend(self, cycles: int, name: str) -> Generator[simpy.Event, Any, None]:
        since = self._device.now
        yield self._device.env.timeout(cycles)
        self._busy += cycles
        self._note(name, since)

    def _note(self, name: str, since: int) -> None:
        if self._keep and self._device.now > since:
            self._spans.append(Span("host", name, since, self._device.now))
