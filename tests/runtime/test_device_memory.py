"""Device memory: pages, guards, maps, and what is found when it is used wrongly."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from npusim.chip import load_chip
from npusim.machine.entries import DeviceFaultError
from npusim.runtime import (
    Code,
    Device,
    InvalidUseError,
    MemPolicy,
    OutOfMemoryError,
    TaskFailedError,
)
from npusim.runtime.memory import BASE, DeviceMemory
from npusim.runtime.pages import HUGE, NORMAL, Pages

MIB = 1 << 20


def small(size: int = 8 * MIB) -> DeviceMemory:
    """A memory of few pages."""
    return DeviceMemory(size, "small 0")


def test_requests_up_to_a_mebibyte_take_normal_pages() -> None:
    """As documented for HUGE_FIRST; larger ones take huge pages while there are some."""
    pages = Pages(8 * MIB)
    assert pages.take(MIB, MemPolicy.HUGE_FIRST) == NORMAL
    assert pages.take(MIB + 1, MemPolicy.HUGE_FIRST) == HUGE
    assert pages.take(1, MemPolicy.HUGE_ONLY) == HUGE
    assert pages.take(3 * MIB, MemPolicy.NORMAL_ONLY) == NORMAL
    assert pages.free == 0


def test_huge_first_falls_back_and_huge_only_does_not() -> None:
    pages = Pages(4 * MIB)
    assert pages.take(NORMAL, MemPolicy.NORMAL_ONLY) == NORMAL  # carved from a huge page
    assert pages.take(2 * MIB, MemPolicy.HUGE_ONLY) == HUGE
    assert (pages.free, pages.free_huge) == (2 * MIB - NORMAL, 0)
    assert pages.take(2 * MIB, MemPolicy.HUGE_ONLY) == 0
    assert pages.take(MIB + 1, MemPolicy.HUGE_FIRST) == NORMAL


def test_pages_come_back() -> None:
    memory = small()
    made = [memory.allocate(n, MemPolicy.HUGE_FIRST, "me") for n in (5, 3 * MIB, 2 * MIB)]
    for a in made:
        memory.free(a.address, "me")
    assert memory.info() == (8 * MIB, 8 * MIB)
    assert memory.info(HUGE) == (8 * MIB, 8 * MIB)
    assert not memory.live


def test_addresses_are_aligned_and_no_pointers_of_the_host() -> None:
    with Device("toy") as device:
        host = device.malloc_host(100)
        a, b = device.malloc(100), device.malloc(100)
        assert host.ctypes.data % 4096 == 0
        assert a.address % 32 == 0 and a.address >= BASE
        assert b.address - a.address == 2 * NORMAL  # nothing that runs over one is in the other
        assert device.malloc(2 * MIB).address % HUGE == 0
        assert not device.memory.owns(host.ctypes.data)
        device.free(a), device.free(b), device.free_host(host)
        assert len(device.leaks()) == 1


def test_devices_have_addresses_of_their_own() -> None:
    with Device("toy") as one, Device("toy", number=1, clock=None) as two:
        a, b = one.malloc(64), two.malloc(64)
        assert not one.memory.owns(b.address) and not two.memory.owns(a.address)
        a.free(), b.free()


def test_out_of_memory_maps_what_is_allocated() -> None:
    with Device("toy", overrides=["hbm.size=16 MiB"]) as device:
        kept = device.malloc(9 * MIB)
        with pytest.raises(OutOfMemoryError) as error:
            device.malloc(8 * MIB)
        assert error.value.code is Code.RT_DEVICE_OOM == 207018
        text = str(error.value)
        assert f"{kept.address:#x}" in text and f"{9 * MIB:,} B" in text
        assert "HUGE_FIRST" in text and "test_device_memory.py:" in text
        assert "6,291,456 B are free" in text and "16,777,216 B in all" in text
        kept.free()


def test_huge_pages_run_out_before_memory_does() -> None:
    memory = small(4 * MIB)
    memory.allocate(3 * MIB - 100, MemPolicy.NORMAL_ONLY, "me")
    with pytest.raises(OutOfMemoryError) as error:
        memory.allocate(MIB // 2, MemPolicy.HUGE_ONLY, "you")
    assert error.value.code is Code.RT_MEMORY_ALLOCATION == 207001
    assert memory.allocate(MIB // 2, MemPolicy.HUGE_FIRST, "you").page == NORMAL


def test_a_chip_s_whole_memory_can_be_allocated_on_a_small_host() -> None:
    memory = DeviceMemory(load_chip("ascend910b2").hbm.size, "big")
    free, _ = memory.info()
    made = memory.allocate(free - 4 * MIB, MemPolicy.HUGE_ONLY, "me")
    view = memory.view(made.address + free // 2, 4)
    assert view is not None
    view[...] = 7
    assert made.data is not None and made.data[free // 2] == 7


@pytest.mark.parametrize("nbytes", [0, -1])
def test_an_allocation_needs_bytes(nbytes: int) -> None:
    with pytest.raises(InvalidUseError, match="1 B or more"):
        small().allocate(nbytes, MemPolicy.HUGE_FIRST, "me")
    with Device("toy") as device, pytest.raises(InvalidUseError, match="1 B or more"):
        device.malloc_host(nbytes)


def test_frees_that_are_wrong_say_why() -> None:
    memory = small()
    a = memory.allocate(100, MemPolicy.HUGE_FIRST, "maker.py:1")
    with pytest.raises(InvalidUseError, match="inside 100 B"):
        memory.free(a.address + 32, "x")
    with pytest.raises(InvalidUseError, match="no allocation starts"):
        memory.free(BASE - 64, "x")
    memory.free(a.address, "first.py:2")
    with pytest.raises(InvalidUseError, match=r"maker.py:1 allocated, first.py:2 freed it") as e:
        memory.free(a.address, "second.py:3")
    assert e.value.code is Code.RT_PARAM_INVALID == 107000


def test_uses_that_are_wrong_say_why() -> None:
    memory = small()
    a = memory.allocate(100, MemPolicy.HUGE_FIRST, "maker.py:1")
    b = memory.allocate(100, MemPolicy.HUGE_FIRST, "maker.py:2", guard=0)
    assert not memory.problem(a.address, 100)
    assert not memory.problem(a.address, 160)  # 128 aligned and 32 of guard
    assert "61 B past the end of 100 B" in memory.problem(a.address, 161)
    assert "never allocated" in memory.problem(BASE - 1, 1)
    assert "29 B past the end" in memory.problem(b.address, 129)
    memory.free(a.address, "f.py:3")
    assert "maker.py:1 allocated and f.py:3 freed" in memory.problem(a.address, 1)
    with pytest.raises(DeviceFaultError) as error:
        memory.check("relu", [(b.address, 4)], [(a.address, 4)])
    assert error.value.code == 507015 and "task 'relu' writes 4 B at" in error.value.what


def test_the_guard_is_checked_at_synchronisation() -> None:
    """Writes up to the next 32 B are padding; into the 32 B behind that, an overrun."""
    with Device("toy") as device:
        stream, host = device.stream(), device.malloc_host(256)
        a = device.malloc(100)
        device.memcpy_async(a, host, 128, stream)
        stream.synchronize()
        device.memcpy_async(a, host, 129, stream)
        with pytest.raises(TaskFailedError, match="guard behind 100 B") as error:
            stream.synchronize()
        assert error.value.code is Code.RT_DEVICE_MEM_ERROR == 507053
        assert "wrote 129 B" in str(error.value)
        stream.synchronize()  # told once
        device.free(a)
        device.free_host(host)


def test_the_guard_is_checked_at_the_free() -> None:
    with Device("toy") as device:
        stream, a = device.stream(), device.malloc(64)
        device.memset(a, 1, 65, stream)
        device.machine.run()
        with pytest.raises(TaskFailedError, match="guard behind 64 B"):
            device.free(a)
        assert not device.memory.live


def test_what_is_left_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    device = Device("toy")
    device.malloc(1000, MemPolicy.NORMAL_ONLY)
    device.malloc_host(10)
    for _ in range(10):
        device.stream()
    device.event()
    with caplog.at_level(logging.WARNING, "npusim.runtime"):
        device.close()
    (record,) = caplog.records
    lines = record.getMessage().splitlines()
    assert lines[0] == "device 0: not given back:"
    assert "1,000 B  NORMAL_ONLY normal pages  test_device_memory.py:" in lines[1]
    assert "10 B  pinned host memory" in lines[2]
    assert lines[3:] == ["  10 streams: 1, 2, 3, 4, 5, 6, 7, 8 …", "  1 events: 0"]


def test_a_with_block_ends_streams_and_events(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "npusim.runtime"), Device("toy") as device:
        with device.stream() as stream, device.event() as event:
            device.memset(device.malloc(64, by="kept"), 1, 64, stream)
            event.record(stream)
        assert event.complete and device.streams_left == device.chip.scheduler.max_streams - 1
        device.stream()
        device.event()
    (record,) = caplog.records
    assert [line.split()[-1] for line in record.getMessage().splitlines()] == ["back:", "kept"]


def test_nothing_is_reported_when_all_is_given_back(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "npusim.runtime"), Device("toy") as device:
        a, host = device.malloc(1000), device.malloc_host(10)
        stream, event = device.stream(), device.event()
        a.free(), device.free_host(host), stream.destroy(), device.destroy_event(event)
    assert not caplog.records


def test_pinned_memory_is_checked() -> None:
    with Device("toy") as device:
        host, a = device.malloc_host(100), device.malloc(1000)
        assert device.pinned.is_pinned(host.ctypes.data + 99)
        assert not device.pinned.is_pinned(host.ctypes.data + 100)
        with pytest.raises(InvalidUseError, match="at most 100 B there"):
            device.memcpy(a, host, 101)
        other = np.zeros(8, np.uint8)
        with pytest.raises(InvalidUseError, match="where none starts"):
            device.free_host(other)
        device.free(a), device.free_host(host)
