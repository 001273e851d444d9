"""A compiled model in device memory, run on streams with inputs and outputs of the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from npusim.machine.arena import Arena
from npusim.machine.copies import copy_time
from npusim.machine.entries import CopyKind, Entry, RecordEntry, TaskEntry, WaitEntry
from npusim.machine.functional import FunctionalExecutor
from npusim.machine.loaded import LoadedExecutable
from npusim.machine.stream import Stream as Queue
from npusim.program.executable import Buffer, Executable
from npusim.runtime.codes import Code
from npusim.runtime.errors import InvalidUseError
from npusim.runtime.memory import Allocation
from npusim.runtime.pages import MemPolicy
from npusim.runtime.placement import placement
from npusim.runtime.transfers import Place, address_of

if TYPE_CHECKING:
    from npusim.runtime.device import Device
    from npusim.runtime.stream import Stream


class Model:
    """A loaded model. Life cycle: construct, `execute` any number of times, `unload`.

    Args:
        eager: the host enqueues task by task, instead of launching the whole at once.
        lend: its workspace is lent by the caller at every run, unless it has constants.

    Raises:
        OutOfMemoryError: its weights and workspace do not fit.
        InvalidUseError: it is compiled for another chip.
    """

    def __init__(
        self, device: Device, exe: Executable, *, eager: bool = False, lend: bool = False
    ) -> None:
        device.require_chip(exe)
        self.exe, self.eager = exe, eager
        self.device = device
        self._place = placement(exe)
        self._queues: list[Queue] = []
        self._executor: FunctionalExecutor | None = None
        first, last = self._place.kept
        self.workspace = last - first if lend and not exe.constants else 0
        self._memory: Allocation | None = None
        if last > first and not self.workspace:
            self._memory = device.memory.allocate(
                last - first, MemPolicy.HUGE_FIRST, f"model {exe.name}"
            )
        data = np.zeros(0, np.uint8) if self._memory is None else self._memory.data
        if device.functional:
            arena = Arena(exe, data, start=first)
            arena.load_constants()
            self._executor = FunctionalExecutor(exe, device.chip, arena)
        self._tell_weights()
        device.call("load model")
        if exe.memory.weight_bytes:
            time = copy_time(device.chip, CopyKind.H2D, exe.memory.weight_bytes, pageable=True)
            device.clock.spend(device.chip.seconds(time.total), f"load {exe.name}")
        device.catch_up()

    def _tell_weights(self) -> None:
        """The host has written the weights: for whoever watches the memory."""
        observer = self.device.machine.observer
        if observer is not None and self._memory is not None:
            home = LoadedExecutable(self.exe, base=self._memory.address - self._place.kept[0])
            weights = [home.range(name) for name in self.exe.constants]
            observer.host_access(f"load {self.exe.name}", [], weights)

    @property
    def inputs(self) -> list[Buffer]:
        """What it reads: names, shapes and types."""
        return [self.exe.buffers[n] for n in self.exe.inputs]

    @property
    def outputs(self) -> list[Buffer]:
        """What it writes."""
        return [self.exe.buffers[n] for n in self.exe.outputs]

    def execute(self, inputs: Sequence[Place], outputs: Sequence[Place]) -> None:
        """Run on the default stream and wait.

        Args:
            inputs, outputs: device addresses, in the model's order.

        Raises:
            InvalidUseError: a wrong number of them. TaskFailedError: memory that is not allocated.
        """
        self.execute_async(inputs, outputs, self.device.default)
        self.device.default.synchronize()

    def execute_async(
        self,
        inputs: Sequence[Place],
        outputs: Sequence[Place],
        stream: Stream,
        workspace: int = 0,
    ) -> None:
        """Queue a run.

        Args:
            workspace: address of `self.workspace` bytes, where the model is to be lent them.

        Raises:
            InvalidUseError: a wrong number of addresses; a stream of another device.
            ResourceLimitError: no streams for its parallel branches.
        """
        if stream.device is not self.device:
            raise InvalidUseError(
                Code.RT_STREAM_CONTEXT,
                f"a run of {self.exe.name} on a stream of device {stream.device.number}",
                f"streams of device {self.device.number}, where it is loaded",
                "use a stream of that device",
            )
        home = self._home(inputs, outputs, workspace)
        lanes = self._lanes(stream)
        if self.eager:
            self._enqueue(home, stream)
        else:  # one launch; its tasks are on the device
            stream.ready(self.device.chip.host.graph_launch, f"launch {self.exe.name}")
            self._fork(lanes)
            for number, entry in home.entries(self.device.machine.env):
                self._submit(lanes[number], entry)
            self._join(lanes)
        for name, source in self._place.copies:
            target = address_of(outputs[self.exe.outputs.index(name)])
            entry = self.device.transfers.entry(f"copy {name}", target, *home.range(source))
            self._submit(stream.queue, entry)

    def _enqueue(self, home: LoadedExecutable, stream: Stream) -> None:
        """Queue its tasks one by one."""
        host = self.device.chip.host
        for _, entry in home.entries(self.device.machine.env):
            is_task = isinstance(entry, TaskEntry)
            stream.put(entry, host.enqueue if is_task else host.call, entry.name)

    def _submit(self, queue: Queue, entry: Entry) -> None:
        self.device.machine.submit(queue.number, entry)

    def _fork(self, lanes: dict[int, Queue]) -> None:
        """Let the model's own streams start where the caller's is now."""
        first, *others = lanes.values()
        if others:
            mark, name = self.device.machine.env.event(), f"start of {self.exe.name}"
            self._submit(first, RecordEntry(name, mark))
            for queue in others:
                self._submit(queue, WaitEntry(name, mark))

    def _join(self, lanes: dict[int, Queue]) -> None:
        """Let the caller's stream go on when the model's own are over."""
        first, *others = lanes.values()
        for queue in others:
            mark, name = self.device.machine.env.event(), f"end of {self.exe.name}"
            self._submit(queue, RecordEntry(name, mark))
            self._submit(first, WaitEntry(name, mark))

    def unload(self) -> None:
        """Give its memory and streams back.

        Raises:
            InvalidUseError: it is unloaded already.
        """
        self.device.call("unload")
        for queue in self._queues:
            self.device.machine.destroy(queue.number)
        self._queues = []
        if self._memory is not None:
            self.device.memory.free(self._memory.address, "unload")

    def _home(
        self, inputs: Sequence[Place], outputs: Sequence[Place], workspace: int
    ) -> LoadedExecutable:
        """The model with its inputs and outputs at these addresses."""
        for what, given, own in (
            ("inputs", inputs, self.inputs),
            ("outputs", outputs, self.outputs),
        ):
            if len(given) != len(own):
                code = "MODEL_INPUT_NOT_MATCH" if what == "inputs" else "MODEL_OUTPUT_NOT_MATCH"
                raise InvalidUseError(
                    Code[code],
                    f"{len(given)} {what} for {self.exe.name}",
                    f"{len(own)}: {', '.join(b.name for b in own)}",
                    f"pass one address for each of the {what}",
                )
        addresses = dict(zip(self.exe.inputs, map(address_of, inputs), strict=True))
        targets = dict(zip(self.exe.outputs, map(address_of, outputs), strict=True))
        moved: dict[str, int] = {}
        for owner, names in self._place.moves.items():
            at = targets[owner] if owner in targets and owner not in addresses else addresses[owner]
            moved.update(dict.fromkeys(names, at))
        executor = None
        if self._executor is not None:
            data = self._bytes(workspace, self.workspace) if self.workspace else None
            executor = self._executor.at(dict(self._views(moved)), data)
        start = self._memory.address if self._memory else workspace
        base = start - self._place.kept[0]
        return LoadedExecutable(self.exe, executor, base, moved, memory=self.device.memory)

    def _views(self, moved: dict[str, int]) -> Iterator[tuple[str, np.ndarray]]:
        """The bytes of moved buffers."""
        for name, address in moved.items():
            yield name, self._bytes(address, self.exe.buffers[name].nbytes)

    def _bytes(self, address: int, nbytes: int) -> np.ndarray:
        """Device memory; where there is none, others in its place: the run will fail anyway."""
        view = self.device.memory.view(address, nbytes)
        return np.zeros(nbytes, np.uint8) if view is None else view

    def _lanes(self, stream: Stream) -> dict[int, Queue]:
        """The model's stream numbers → queues: the caller's, then its own."""
        numbers = sorted({task.stream for task in self.exe.tasks}) or [0]
        while len(self._queues) < len(numbers) - 1:
            number = self.device.free_number()
            self._queues.append(self.device.machine.stream(number, stream.priority))
        for queue in self._queues:
            if queue not in stream.beside:
                stream.beside.append(queue)
        return dict(zip(numbers, [stream.queue, *self._queues], strict=False))
