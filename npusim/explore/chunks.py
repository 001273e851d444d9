"""A pipeline of chunks on the device: copy in, compute, copy out, over one stream or three.

The host program is the one that every guide shows. Over three streams, events order the stages of
a chunk, and chunk i + k waits for the buffers of chunk i, where k chunks have buffers. From
pageable memory a copy's call comes back when the copy is over, as ACL says of `aclrtMemcpyAsync`:
the host then serialises what the streams could do side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError
from npusim.machine.copies import copy_time
from npusim.machine.device import Device
from npusim.machine.entries import CopyEntry, CopyKind, RecordEntry, WaitEntry
from npusim.machine.host_thread import Calls, HostThread
from npusim.machine.loaded import LoadedExecutable
from npusim.machine.recorder import KeepAll
from npusim.program.executable import GM_ALIGN, Executable
from npusim.timeline import OpRecord, Timeline, check_timeline
from npusim.timeline.overlapped import ChunkTimes

COMPUTE, COPY_IN, COPY_OUT = 0, 1, 2  #: streams; a compiled model's tasks are on stream 0


@dataclass(frozen=True)
class Way:
    """How the chunks run.

    Attributes:
        streams: 1 or 3; pinned: the host's memory is page-locked.
        ahead: the host asks for the next chunk's input before this one's output.
    """

    name: str
    streams: int
    pinned: bool
    ahead: bool = False


#: From the slowest to the fastest.
WAYS = (
    Way("1 stream, pageable", 1, False),
    Way("1 stream, pinned", 1, True),
    Way("3 streams, pageable", 3, False),
    Way("3 streams, pageable, input ahead", 3, False, ahead=True),
    Way("3 streams, pinned", 3, True),
)


@dataclass(frozen=True)
class ChunkWork:
    """What a chunk is: a model, and what is copied before and after.

    Attributes:
        copies_in, copies_out: (buffer of the model, bytes); the name "" is memory of its own.
    """

    exe: Executable
    copies_in: tuple[tuple[str, int], ...]
    copies_out: tuple[tuple[str, int], ...]

    @classmethod
    def of_model(cls, exe: Executable) -> ChunkWork:
        """All inputs of the model in, all outputs out.

        Raises:
            UnsupportedError: the model's tasks are on several streams.
        """
        if {task.stream for task in exe.tasks} - {COMPUTE}:
            raise UnsupportedError(
                f"{exe.name} compiled for several streams",
                "models compiled for one stream: copies have the others",
                "compile it with --streams 1",
            )
        sizes = exe.buffers
        return cls(
            exe,
            tuple((n, sizes[n].nbytes) for n in exe.inputs),
            tuple((n, sizes[n].nbytes) for n in exe.outputs),
        )

    @property
    def bytes_in(self) -> int:
        """Copied to the device per chunk."""
        return sum(n for _, n in self.copies_in)

    @property
    def bytes_out(self) -> int:
        """Copied back per chunk."""
        return sum(n for _, n in self.copies_out)


class ChunkPipeline:
    """N chunks on a device of their own. Life cycle: construct, `run` once.

    Raises:
        UnsupportedError: the buffers do not fit the chip's memory.
    """

    def __init__(
        self, work: ChunkWork, chip: ChipSpec, way: Way, chunks: int, buffers: int
    ) -> None:
        self._work, self._chip, self._way = work, chip, way
        self._chunks = chunks
        self._buffers = buffers if way.streams == 3 else 1  # in order, one is as good as several
        self._recorder = KeepAll()
        self._device = Device(chip, self._recorder)
        self._host = HostThread(self._device)
        three = way.streams == 3
        self._in, self._out = (COPY_IN, COPY_OUT) if three else (COMPUTE, COMPUTE)
        for number in sorted({COMPUTE, self._in, self._out}):
            self._device.stream(number)
        self._slots = self._place()
        events = self._device.env.event
        self._arrived, self._computed, self._sent = (
            [events() for _ in range(chunks)] for _ in range(3)
        )

    def run(self) -> Timeline:
        """Run all chunks; the timeline ends when the host has seen the end.

        Raises:
            AccountingError: the simulation does not add up.
        """
        device = self._device
        device.env.process(self._program())
        device.run(self._work.exe.name)
        used = self._host.use()
        chip = self._chip
        timeline = Timeline(
            chip.name, chip.clock, self._recorder.ops(), used.end, host=used, steps=self._chunks
        )
        return check_timeline(timeline, chip.hbm_rate, chip.l2_rate)

    def _place(self) -> list[dict[tuple[str, str], int]]:
        """Where every buffer's copies lie: (way, name) → address, for each of the buffers."""
        end = self._work.exe.memory.peak_bytes
        slots: list[dict[tuple[str, str], int]] = []
        for _ in range(self._buffers):
            slot = {}
            for side in ("in", "out"):
                copies = self._work.copies_in if side == "in" else self._work.copies_out
                for name, nbytes in copies:
                    slot[side, name] = end
                    end += -(-nbytes // GM_ALIGN) * GM_ALIGN
            slots.append(slot)
        if end > self._chip.hbm.size:
            raise UnsupportedError(
                f"{self._buffers} times {self._work.bytes_in + self._work.bytes_out:,} B beside "
                f"{self._work.exe.name}: {end:,} B",
                f"at most {self._chip.hbm.size:,} B, the memory of {self._chip.name}",
                "make the chunks smaller, or take fewer buffers",
            )
        return slots

    # -- the host's program ------------------------------------------------------------------

    def _program(self) -> Calls:
        ahead = self._way.ahead
        for i in range(self._chunks):
            if i == 0 or not ahead:
                yield from self._copy_in(i)
            yield from self._compute(i)
            if ahead and i + 1 < self._chunks:
                yield from self._copy_in(i + 1)
            yield from self._copy_out(i)
        numbers = sorted({COMPUTE, self._in, self._out})
        yield from self._host.synchronize(numbers, "all chunks")

    def _copy_in(self, i: int) -> Calls:
        if self._in != COMPUTE and i >= self._buffers:
            mark = self._computed[i - self._buffers]
            yield from self._host.submit(self._in, WaitEntry(f"computed {i - self._buffers}", mark))
        for name, nbytes in self._work.copies_in:
            target = self._slots[i % self._buffers]["in", name]
            copy = CopyEntry(f"input {i}", CopyKind.H2D, nbytes, target=target)
            yield from self._copy(self._in, copy)
        if self._in != COMPUTE:
            yield from self._host.submit(self._in, RecordEntry(f"arrived {i}", self._arrived[i]))

    def _compute(self, i: int) -> Calls:
        host, apart = self._host, self._in != COMPUTE
        if apart:
            yield from host.submit(COMPUTE, WaitEntry(f"arrived {i}", self._arrived[i]))
            if i >= self._buffers:
                mark = self._sent[i - self._buffers]
                yield from host.submit(COMPUTE, WaitEntry(f"sent {i - self._buffers}", mark))
        moved = {n: a for (_, n), a in self._slots[i % self._buffers].items() if n}
        yield from host.launch_graph(LoadedExecutable(self._work.exe, moved=moved), i)
        if apart:
            yield from host.submit(COMPUTE, RecordEntry(f"computed {i}", self._computed[i]))

    def _copy_out(self, i: int) -> Calls:
        if self._out != COMPUTE:
            yield from self._host.submit(self._out, WaitEntry(f"computed {i}", self._computed[i]))
        for name, nbytes in self._work.copies_out:
            source = self._slots[i % self._buffers]["out", name]
            copy = CopyEntry(f"output {i}", CopyKind.D2H, nbytes, source=source)
            yield from self._copy(self._out, copy)
        if self._out != COMPUTE:
            yield from self._host.submit(self._out, RecordEntry(f"sent {i}", self._sent[i]))

    def _copy(self, stream: int, copy: CopyEntry) -> Calls:
        yield from self._host.copy(stream, replace(copy, pageable=not self._way.pinned))


# -- figures ---------------------------------------------------------------------------------


def is_copy(op: OpRecord) -> bool:
    """A copy over PCIe, not a task of the model."""
    return op.core_type == "PCIE"


def union(ops: list[OpRecord]) -> list[tuple[int, int]]:
    """The intervals in which at least one of the ops ran, in order and apart."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((op.start, op.end) for op in ops):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def hidden_cycles(timeline: Timeline) -> int:
    """Cycles of copies that lie under computing, each copy counted by itself."""
    computing = union([op for op in timeline.ops if not is_copy(op)])
    return sum(
        max(0, min(op.end, end) - max(op.start, start))
        for op in timeline.ops
        if is_copy(op)
        for start, end in computing
    )


def chunk_times(work: ChunkWork, chip: ChipSpec) -> ChunkTimes:
    """A chunk's stages, each alone: the last of three in order, caches as they then are."""
    timeline = ChunkPipeline(work, chip, WAYS[1], 3, 1).run()
    spans = []
    for step in range(3):
        ops = [op for op in timeline.ops if not is_copy(op) and op.step == step]
        spans.append(max(op.end for op in ops) - min(op.start for op in ops))

    def copies(kind: CopyKind, sizes: tuple[tuple[str, int], ...], pageable: bool) -> float:
        gap = 0 if pageable else chip.cycles(chip.scheduler.gap)  # the host's calls hide it
        cycles = [copy_time(chip, kind, n, pageable).total for _, n in sizes]
        return timeline.us(sum(cycles) + gap * max(0, len(cycles) - 1))

    return ChunkTimes(
        copy_in=copies(CopyKind.H2D, work.copies_in, False),
        compute=timeline.us(spans[-1]),
        cold=timeline.us(spans[0] - spans[-1]),
        copy_out=copies(CopyKind.D2H, work.copies_out, False),
        pageable_in=copies(CopyKind.H2D, work.copies_in, True),
        pageable_out=copies(CopyKind.D2H, work.copies_out, True),
        bytes_in=work.bytes_in,
        bytes_out=work.bytes_out,
    )
