"""Copies and other units: times against closed forms, turns, L2, shares of the memories."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import CHIPS

from npusim.machine.copies import copy_time
from npusim.machine.device import Device
from npusim.machine.entries import CopyEntry, CopyKind
from npusim.machine.recorder import KeepAll
from npusim.timeline import OpRecord

CHIP = CHIPS["ascend910a"]
MIB = 1 << 20


def copied(*entries: tuple[int, CopyEntry]) -> dict[str, OpRecord]:
    """The records of (stream, copy), all queued at the start, by name."""
    recorder = KeepAll()
    device = Device(CHIP, recorder)
    for number, entry in entries:
        device.submit(number, entry)
    device.run()
    return {op.name: op for op in recorder.ops()}


@given(nbytes=st.integers(0, 1 << 30))
def test_a_pinned_copy_takes_its_latency_and_its_bytes_over_the_link(nbytes: int) -> None:
    time = copy_time(CHIP, CopyKind.H2D, nbytes)
    rate = CHIP.pcie.bandwidth * CHIP.pcie.efficiency
    assert time.latency == CHIP.cycles(CHIP.pcie.latency)
    assert time.body == CHIP.cycles(nbytes / rate)
    assert time == copy_time(CHIP, CopyKind.D2H, nbytes)


@given(nbytes=st.integers(1, 1 << 30))
def test_a_pageable_copy_goes_at_the_slower_of_host_and_link(nbytes: int) -> None:
    pinned = copy_time(CHIP, CopyKind.H2D, nbytes).total
    pageable = copy_time(CHIP, CopyKind.H2D, nbytes, pageable=True).total
    host = nbytes / CHIP.host.memcpy
    pieces = ceil(nbytes / CHIP.pcie.staging)
    assert pageable >= pinned
    assert CHIP.seconds(pageable) >= host
    most = host + CHIP.seconds(pinned) / pieces + CHIP.pcie.latency
    assert CHIP.seconds(pageable) <= most + 2 / CHIP.clock  # each rounded up


@pytest.mark.parametrize("kind", list(CopyKind))
def test_a_copy_alone_takes_its_closed_form(kind: CopyKind) -> None:
    op = copied((0, CopyEntry("c", kind, 7 * MIB + 13, source=0, target=64 * MIB)))["c"]
    assert op.cycles == copy_time(CHIP, kind, 7 * MIB + 13).total
    assert op.bytes_l2 == (7 * MIB + 13) * (2 if kind is CopyKind.D2D else 1)
    assert op.bytes_hbm == op.bytes_l2  # nothing is in L2
    assert op.roofline <= op.cycles


def test_each_way_of_the_link_takes_turns_and_the_ways_do_not_meet() -> None:
    n = 4 * MIB
    ops = copied(
        (0, CopyEntry("in0", CopyKind.H2D, n)),
        (1, CopyEntry("in1", CopyKind.H2D, n)),
        (2, CopyEntry("out", CopyKind.D2H, n)),
    )
    assert ops["in0"].start == ops["out"].start == 0
    assert ops["in1"].start == ops["in1"].queued == ops["in0"].end
    assert ops["in0"].cycles == ops["in1"].cycles == ops["out"].cycles


def test_sdma_copies_as_many_as_it_has_channels() -> None:
    n = CHIP.sdma.channels
    ops = copied(*((i, CopyEntry(f"c{i}", CopyKind.D2D, MIB)) for i in range(n + 1)))
    assert [op.queued > 0 for op in ops.values()] == [False] * n + [True]


def test_what_is_in_l2_need_not_be_read_and_what_is_written_leaves_it() -> None:
    recorder = KeepAll()
    device = Device(CHIP, recorder)
    device._shared.l2.touch([(0, MIB)])
    for i, kind in enumerate((CopyKind.D2H, CopyKind.H2D, CopyKind.D2H)):
        device.submit(0, CopyEntry(f"c{i}", kind, MIB, source=0, target=0))
    device.run()
    assert [op.bytes_hbm for op in recorder.ops()] == [0, MIB, MIB]
