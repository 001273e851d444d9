"""Races between streams: seeded ones are found by name, sound runs have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tiny import CHIPS

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions
from npusim.machine.device import Device
from npusim.machine.entries import CopyEntry, CopyKind, RecordEntry, WaitEntry
from npusim.machine.host import HostPlan
from npusim.machine.recorder import KeepAll
from npusim.program.executable import Executable
from npusim.sanitize import FindingKind, StreamSanitizer

CHIP = load_chip("ascend910a")
N = 1 << 16


def write(name: str, address: int = 0, nbytes: int = N) -> CopyEntry:
    return CopyEntry(name, CopyKind.H2D, nbytes, target=address)


def read(name: str, address: int = 0, nbytes: int = N) -> CopyEntry:
    return CopyEntry(name, CopyKind.D2H, nbytes, source=address)


class Program:
    """A host program on a device that is watched."""

    def __init__(self, known: list[tuple[int, int]] | None = None) -> None:
        self.watcher = StreamSanitizer("program", known)
        self.device = Device(CHIP, KeepAll(), observer=self.watcher)

    def event(self, source: int, target: int) -> None:
        """What comes on `target` waits for what is on `source`."""
        mark = self.device.env.event()
        self.device.submit(source, RecordEntry("e", mark))
        self.device.submit(target, WaitEntry("e", mark))

    def synchronise(self, number: int) -> None:
        self.device.run_while(self.device.stream(number).drained())
        self.device.synchronised(number)

    def kinds(self) -> list[FindingKind]:
        self.device.run()
        return [f.kind for f in self.watcher.findings]


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [(write, read, "RAW"), (read, write, "WAR"), (write, write, "WAW"), (read, read, "")],
)
@pytest.mark.parametrize("order", ["none", "event", "same stream", "host", "event too early"])
def test_two_copies(
    first: Callable[[str], CopyEntry], second: Callable[[str], CopyEntry], kind: str, order: str
) -> None:
    """Found unless something orders them, whatever the times."""
    p = Program()
    if order == "event too early":
        p.event(0, 1)
    p.device.submit(0, first("a"))
    if order == "event":
        p.event(0, 1)
    if order == "host":
        p.synchronise(0)
    p.device.submit(0 if order == "same stream" else 1, second("b"))
    sound = order in ("event", "same stream", "host") or not kind
    assert p.kinds() == ([] if sound else [FindingKind[kind]])


def test_a_finding_names_the_sides_the_bytes_and_the_event() -> None:
    p = Program()
    p.device.submit(3, write("fill", 4096))
    p.device.submit(5, read("drain", 4096 + 100, 50))
    p.device.run()
    (found,) = p.watcher.findings
    assert (found.start, found.nbytes) == (4096 + 100, 50)
    text = str(found)
    assert "stream 3 writes at #1 fill, then stream 5 reads at #1 drain" in text
    assert "an event recorded on stream 3 after 'fill', and waited for on stream 5" in text
    assert len(text.splitlines()) == 3


def test_order_is_transitive_over_streams() -> None:
    p = Program()
    p.device.submit(0, write("a"))
    p.event(0, 1)
    p.event(1, 2)
    p.device.submit(2, read("b"))
    assert p.kinds() == []


def test_neighbours_do_not_race() -> None:
    p = Program()
    for i in range(8):
        p.device.submit(i, write(f"w{i}", i * N))
        p.device.submit(i, read(f"r{i}", i * N))
    assert p.kinds() == []


def test_part_of_a_range_is_enough() -> None:
    p = Program()
    p.device.submit(0, write("all", 0, 4 * N))
    p.event(0, 1)
    p.device.submit(1, write("middle", N, N))
    p.device.submit(0, read("end", 3 * N, N))
    p.device.submit(0, read("across", N // 2, N))
    p.device.run()
    (found,) = p.watcher.findings
    assert found.kind is FindingKind.RAW
    assert (found.start, found.nbytes) == (N, N // 2)


def test_reading_what_nobody_wrote() -> None:
    p = Program(known=[(0, N)])
    p.device.submit(0, read("known", 0))
    p.device.submit(0, read("half", N // 2))
    p.device.run()
    (found,) = p.watcher.findings
    assert found.kind is FindingKind.UNINITIALISED
    assert (found.start, found.nbytes) == (N, N // 2)


def test_the_host_races_too() -> None:
    p = Program()
    p.device.submit(0, read("drain"))
    p.watcher.host_access("memset", [], [(0, N)])
    p.device.run()
    p.watcher.host_access("memset again", [], [(0, N)])
    kinds = [f.kind for f in p.watcher.findings]
    assert kinds == [FindingKind.RAW, FindingKind.WAR]  # the copy started after the first memset
    assert "synchronisation with stream 0" in p.watcher.findings[-1].missing


# -- compiled models -----------------------------------------------------------------------


def branches() -> Executable:
    """A model whose branches the compiler puts on two streams."""
    options = CompileOptions("fp16", streams=4)
    exe = api.compile_graph(api.load_model("bert-tiny").graph, CHIP, options=options)
    assert len({t.stream for t in exe.tasks}) > 1
    return exe


@pytest.mark.parametrize("plan", [None, HostPlan("eager", 3), HostPlan("graph", 3, 3)])
def test_a_compiled_model_on_two_streams_is_sound(plan: HostPlan | None) -> None:
    exe = branches()
    watcher = api.stream_sanitizer(exe)
    api.run(exe, CHIP, timing_only=True, host=plan, observer=watcher)
    assert watcher.findings == []
    assert watcher.entries == len(exe.tasks) * (plan.steps if plan else 1)


def test_a_lost_event_is_found() -> None:
    exe = branches()
    exe.tasks = [replace(t, waits=()) for t in exe.tasks]
    watcher = api.stream_sanitizer(exe)
    api.run(exe, CHIP, timing_only=True, observer=watcher)
    assert FindingKind.RAW in {f.kind for f in watcher.findings}
    waited = {t.name for t in branches().tasks if t.waits}
    assert any(f.second is not None and f.second.what in waited for f in watcher.findings)


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize("streams", [1, 4])
def test_shipped_models_have_no_findings(chip: str, streams: int) -> None:
    options = CompileOptions("fp16", streams=streams)
    exe = api.compile_graph(api.load_model("bert-tiny").graph, CHIPS[chip], options=options)
    watcher = api.stream_sanitizer(exe)
    plan = HostPlan("graph", 2, 2)
    api.run(exe, CHIPS[chip], timing_only=True, host=plan, observer=watcher)
    assert watcher.findings == []
