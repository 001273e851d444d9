"""Copies: bytes and closed forms of their times, on the host's clock and the device's."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.machine.copies import copy_time
from npusim.machine.entries import CopyKind
from npusim.runtime import Code, Device, InvalidUseError, Stream, TaskFailedError, Way
from npusim.timeline import OpRecord

MIB = 1 << 20


def data(nbytes: int) -> np.ndarray:
    """Bytes that are all different from their neighbours."""
    return (np.arange(nbytes) * 7 % 251).astype(np.uint8)


def pinned(device: Device, nbytes: int) -> np.ndarray:
    """Pinned memory with data."""
    memory = device.malloc_host(nbytes)
    memory[...] = data(nbytes)
    return memory


def ops(device: Device) -> list[OpRecord]:
    """What ran, in order of start."""
    return list(device.timeline.ops)


@pytest.mark.parametrize("nbytes", [1, 4097, 3 * MIB])
def test_bytes_go_round(nbytes: int) -> None:
    """Host to device to device to host."""
    with Device("toy") as device:
        host, back = pinned(device, nbytes), device.malloc_host(nbytes)
        a, b, s = device.malloc(nbytes), device.malloc(nbytes), device.stream()
        device.memcpy_async(a, host, nbytes, s)
        device.memcpy_async(b, a, nbytes, s)
        device.memcpy_async(back, b, nbytes, s)
        assert not back.any()  # nothing has happened yet
        s.synchronize()
        assert np.array_equal(back, host)
        assert [op.kernel for op in ops(device)] == ["MEMCPY_H2D", "MEMCPY_D2D", "MEMCPY_D2H"]


def test_a_copy_costs_latency_and_bytes_over_the_rate() -> None:
    with Device("ascend910a") as device:
        chip, nbytes = device.chip, 8 * MIB
        host, a, s = pinned(device, nbytes), device.malloc(nbytes), device.stream()
        begin = device.clock.now
        device.memcpy_async(a, host, nbytes, s)
        assert device.clock.now == begin + chip.cycles(chip.host.call)  # asynchronous
        s.synchronize()
        (op,) = ops(device)
        rate = chip.pcie.bandwidth * chip.pcie.efficiency
        assert op.cycles == chip.cycles(chip.pcie.latency) + chip.cycles(nbytes / rate)
        assert op.start == begin + chip.cycles(chip.host.call)
        assert device.clock.now == op.end + chip.cycles(chip.host.sync)


def test_pageable_memory_holds_the_host_up() -> None:
    """It returns when the copy is over, which takes longer than from pinned memory."""
    with Device("ascend910a") as device:
        chip, nbytes = device.chip, 8 * MIB
        a, s = device.malloc(nbytes), device.stream()
        device.memcpy_async(a, data(nbytes), nbytes, s)
        (op,) = ops(device)
        assert op.cycles == copy_time(chip, CopyKind.H2D, nbytes, pageable=True).total
        assert op.cycles > copy_time(chip, CopyKind.H2D, nbytes).total
        assert device.clock.now == op.end + chip.cycles(chip.host.sync)


def test_both_ways_of_the_link_at_once_but_each_one_at_a_time() -> None:
    with Device("ascend910a") as device:
        nbytes = 4 * MIB
        host, out = pinned(device, nbytes), device.malloc_host(nbytes)
        a, b, c = (device.malloc(nbytes) for _ in range(3))
        device.memcpy(b, host, nbytes)
        first, second, third = (device.stream() for _ in range(3))
        device.memcpy_async(a, host, nbytes, first)
        device.memcpy_async(out, b, nbytes, second)
        device.memcpy_async(c, host, nbytes, third)
        device.synchronize()
        _, up, down, again = ops(device)
        assert (up.kernel, down.kernel, again.kernel) == ("MEMCPY_H2D", "MEMCPY_D2H", "MEMCPY_H2D")
        assert down.start < up.end  # side by side
        assert again.start == up.end  # one after the other
        assert again.queued == up.end - (again.start - again.queued)


def test_a_copy_on_the_device_takes_sdma() -> None:
    with Device("ascend910a") as device:
        chip, nbytes = device.chip, 16 * MIB
        a, b, s = device.malloc(nbytes), device.malloc(nbytes), device.stream()
        device.memcpy_async(b, a, nbytes, s)
        s.synchronize()
        (op,) = ops(device)
        sdma = chip.sdma
        assert op.cycles == chip.cycles(sdma.latency) + chip.cycles(nbytes / sdma.bandwidth)
        assert op.bytes_hbm == 2 * nbytes


def test_a_synchronous_copy_waits_for_no_stream() -> None:
    """It runs beside the streams, as aclrtMemcpy does."""
    with Device("ascend910a") as device:
        host, a, s = pinned(device, 32 * MIB), device.malloc(32 * MIB), device.stream()
        small = device.malloc(64)
        device.memcpy_async(a, host, 32 * MIB, s)
        device.memcpy(device.malloc_host(64), small, 64)
        assert not s.done
        s.synchronize()


def test_from_host_to_host_costs_the_host() -> None:
    with Device("ascend910a") as device:
        source, target = data(MIB), np.zeros(MIB, np.uint8)
        begin, chip = device.clock.now, device.chip
        device.memcpy(target, source, MIB)
        assert np.array_equal(source, target)
        spent = chip.cycles(chip.host.call) + chip.cycles(MIB / chip.host.memcpy)
        assert device.clock.now - begin == spent
        with pytest.raises(InvalidUseError) as error:
            device.memcpy_async(target, source, MIB, device.default)
        assert error.value.code is Code.RT_FEATURE_NOT_SUPPORT == 207000


def test_a_fill_writes_only() -> None:
    with Device("ascend910a") as device:
        nbytes, s = 2 * MIB, device.stream()
        a, back = device.malloc(nbytes), device.malloc_host(nbytes)
        device.memset(a, 0x1FF, nbytes, s)
        device.memcpy_async(back, a, nbytes, s)
        s.synchronize()
        assert (back == 255).all()
        fill = ops(device)[0]
        assert (fill.bytes_hbm, fill.bytes_l2) == (nbytes, nbytes)
        device.memset(a, 3, 1)
        device.memcpy(back, a, 2)
        assert back[:2].tolist() == [3, 255]


def test_a_prefetch_brings_memory_into_l2() -> None:
    """What a copy on the device reads then comes from L2."""
    with Device("ascend910a") as device:
        nbytes, s = 4 * MIB, device.stream()
        a, b = device.malloc(nbytes), device.malloc(nbytes)
        device.prefetch(a, nbytes, s)
        device.prefetch(a, nbytes, s)
        device.memcpy_async(b, a, nbytes, s)
        s.synchronize()
        first, second, copy = ops(device)
        assert first.bytes_hbm == nbytes and second.bytes_hbm == 0
        assert copy.bytes_hbm == nbytes  # written only
        with pytest.raises(InvalidUseError, match="device memory"):
            device.prefetch(1, 8, s)


def test_the_way_is_told_by_addresses_and_checked() -> None:
    with Device("toy") as device:
        a, host = device.malloc(64), data(64)
        transfers = device.transfers
        transfers.copy(a, host, 64, Way.HOST_TO_DEVICE)
        for way in (Way.HOST_TO_HOST, Way.DEVICE_TO_HOST, Way.DEVICE_TO_DEVICE):
            with pytest.raises(InvalidUseError, match=way.name) as error:
                transfers.copy(a, host, 64, way)
            assert error.value.code is Code.RT_PARAM_INVALID
        with pytest.raises(InvalidUseError, match="a copy of -1 B"):
            transfers.copy(a, host, -1)
        with pytest.raises(InvalidUseError, match="device memory"):
            device.memset(host, 0, 64)


def failing(device: Device, stream: Stream, message: str) -> None:
    """The stream's error surfaces at synchronisation, with ACL's number for memory."""
    with pytest.raises(TaskFailedError, match=message) as error:
        stream.synchronize()
    assert error.value.code is Code.RT_DEVICE_MEM_ERROR


def test_memory_freed_too_soon_is_found_at_synchronisation() -> None:
    with Device("ascend910a") as device:
        host, s = pinned(device, MIB), device.stream()
        a = device.malloc(MIB)
        device.memcpy_async(a, host, MIB, s)
        a.free()  # the copy is not over
        failing(device, s, r"memcpy_1 writes 1048576 B .* and test_transfers.py:\d+ freed")
        failing(device, s, "memcpy_1")  # the stream stays as it is
        other = device.stream()
        device.memcpy_async(device.malloc(64), host, 64, other)
        other.synchronize()


def test_a_copy_past_an_allocation_is_found_at_synchronisation() -> None:
    with Device("toy") as device:
        host, s, a = pinned(device, MIB), device.stream(), device.malloc(1000)
        device.memcpy_async(a, host, MIB, s)
        failing(device, s, "past the end of 1000 B")
        with pytest.raises(TaskFailedError, match="past the end"):
            device.memcpy(host, a, MIB)
        device.memcpy(host, a, 1000)  # copies beside streams go on


def test_a_source_that_changes_meanwhile_is_copied_in_part() -> None:
    """The host changes pinned memory before the copy is over."""
    with Device("ascend910a") as device:
        nbytes = 8 * MIB
        host, a, back, s = pinned(device, nbytes), device.malloc(nbytes), None, device.stream()
        device.memcpy_async(a, host, nbytes, s)
        device.call("something else")  # the copy has begun
        host[...] = 255
        s.synchronize()
        back = device.malloc_host(nbytes)
        device.memcpy(back, a, nbytes)
        assert np.array_equal(back[: nbytes // 2], data(nbytes)[: nbytes // 2])
        assert (back[nbytes // 2 :] == 255).all()
