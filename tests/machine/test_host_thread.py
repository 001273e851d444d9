"""A host program beside the device: what its calls cost, and what they wait for."""

from __future__ import annotations

from collections.abc import Callable

from npusim.chip import load_chip
from npusim.machine.copies import copy_time
from npusim.machine.device import Device
from npusim.machine.entries import CallbackEntry, CopyEntry, CopyKind
from npusim.machine.host_thread import Calls, HostThread
from npusim.machine.host_workers import HostWorkers
from npusim.machine.recorder import KeepAll
from npusim.timeline import HostUse

CHIP = load_chip("ascend910a")
CALL, SYNC = CHIP.cycles(CHIP.host.call), CHIP.cycles(CHIP.host.sync)
NBYTES = 10_000_000


def run(program: Callable[[Device, HostThread], Calls], chip=CHIP) -> tuple[HostUse, KeepAll]:
    recorder = KeepAll()
    device = Device(chip, recorder)
    host = HostThread(device)
    device.env.process(program(device, host))
    device.run()
    return host.use(), recorder


def test_a_pinned_copy_comes_back_at_once() -> None:
    def program(device: Device, host: HostThread) -> Calls:
        yield from host.copy(0, CopyEntry("x", CopyKind.H2D, NBYTES))

    use, recorder = run(program)
    (op,) = recorder.ops()
    assert (use.end, use.busy, use.waiting) == (CALL, CALL, 0)
    assert op.cycles == copy_time(CHIP, CopyKind.H2D, NBYTES).total > 100 * CALL


def test_a_pageable_copy_comes_back_when_it_is_over() -> None:
    def program(device: Device, host: HostThread) -> Calls:
        yield from host.copy(0, CopyEntry("x", CopyKind.H2D, NBYTES, pageable=True))

    use, recorder = run(program)
    (op,) = recorder.ops()
    assert op.cycles == copy_time(CHIP, CopyKind.H2D, NBYTES, pageable=True).total
    assert use.end == op.end + SYNC
    assert use.busy + use.waiting == use.end and use.busy == CALL
    assert [s.name for s in use.spans] == ["x", "synchronize x"]


def test_a_full_queue_holds_the_host() -> None:
    chip = load_chip("ascend910a", ["scheduler.queue_depth=2"])

    def program(device: Device, host: HostThread) -> Calls:
        for i in range(6):
            yield from host.submit(0, CallbackEntry(f"c{i}", lambda: None, 10_000))
        yield from host.synchronize([0], "the end")

    use, _ = run(program, chip)
    assert use.queue_full > 2 * 10_000
    assert use.busy + use.queue_full + use.waiting == use.end


def test_workers_take_jobs_in_order() -> None:
    device = Device(CHIP, KeepAll())
    workers = HostWorkers(device, 2)
    ends: list[tuple[int, int]] = []

    def program() -> Calls:
        events = [workers.submit(cycles) for cycles in (30, 10, 20, 5)]
        for job, event in enumerate(events):
            event.callbacks.append(lambda _, job=job: ends.append((device.now, job)))
        yield device.env.timeout(100)
        late = workers.submit(7)
        yield late
        ends.append((device.now, 4))

    device.env.process(program())
    device.run()
    assert ends == [(10, 1), (30, 0), (30, 2), (35, 3), (107, 4)]
    assert workers.busy == 72
