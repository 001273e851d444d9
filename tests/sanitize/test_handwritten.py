"""One little kernel per class of bug: each is found, with the names and bytes it should have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from handwritten import B2, F16, N, Program, Tiny, gm, relu, sync, ub

from npusim.kernels.cross_core import await_signal, signal
from npusim.kernels.lang import Kernel
from npusim.program import isa
from npusim.program.isa import Instr, Pipe
from npusim.program.region import Region
from npusim.sanitize import Finding, FindingKind

K = FindingKind
ON_UB = 100  #: elements


def only(findings: list[Finding]) -> Finding:
    """The one finding there is."""
    assert len(findings) == 1, "\n".join(map(str, findings))
    return findings[0]


def test_a_sound_kernel_has_no_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Tiny().findings(monkeypatch, relu) == []


# -- races between pipes ----


def test_read_after_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0), gm(0))
        yield k.vec("relu", ub(512, ON_UB), ub(0, ON_UB))
        yield from sync(k, Pipe.V, Pipe.MTE3)
        yield k.store(gm(1, 0, ON_UB), ub(512, ON_UB))

    found = only(Tiny().findings(monkeypatch, program))
    assert (found.kind, found.space, found.start, found.nbytes) == (K.RAW, "UB", 0, 2 * ON_UB)
    assert found.first is not None and found.second is not None
    assert (found.first.actor, found.first.index, found.first.what) == ("MTE2", 0, "copy_gm 512 B")
    assert (found.second.actor, found.second.index, found.second.what) == ("V", 1, "relu")
    assert found.missing == "set_flag(MTE2, V) after #0 and wait_flag(MTE2, V) before #1"
    assert found.first.source.startswith("test_handwritten.py:")
    assert str(found).splitlines()[0] == (
        "read-after-write race: UB bytes 0…199: Handwritten, block 0"
    )


def test_write_after_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield from relu(k)
        yield k.load(ub(256), gm(0))  # V still reads 256 … 511

    found = Tiny().findings(monkeypatch, program)
    assert [f.kind for f in found] == [K.WAR, K.WAW, K.WAR]
    assert (found[0].start, found[0].nbytes) == (256, 256)
    assert found[0].missing == "set_flag(V, MTE2) after #3 and wait_flag(V, MTE2) before #7"
    assert found[1].missing == "set_flag(V, MTE2) after #3 and wait_flag(V, MTE2) before #7"
    assert found[2].missing == "set_flag(MTE3, MTE2) after #6 and wait_flag(MTE3, MTE2) before #7"


def test_write_after_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0), gm(0))
        yield k.vec("dup", ub(0, 16), scalar=1.0)
        yield from sync(k, Pipe.MTE2, Pipe.V, Pipe.MTE3)
        yield k.store(gm(1), ub(0))

    found = only(Tiny().findings(monkeypatch, program))
    assert (found.kind, found.start, found.nbytes) == (K.WAW, 0, 32)


def test_a_flag_that_is_set_too_early_orders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield from sync(k, Pipe.MTE2, Pipe.V)
        yield k.load(ub(0), gm(0))
        yield k.vec("relu", ub(512), ub(0))
        yield from sync(k, Pipe.V, Pipe.MTE3)
        yield k.store(gm(1), ub(512))

    assert [f.kind for f in Tiny().findings(monkeypatch, program)] == [K.RAW]


def test_order_passes_through_other_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield from relu(k)
        yield from sync(k, Pipe.MTE3, Pipe.MTE2, event=2)  # MTE3 came after V
        yield k.load(ub(512), gm(0))
        yield k.load(ub(0), gm(0))

    assert Tiny().findings(monkeypatch, program) == []


def test_interleaved_columns_are_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = ub(0).split(0, 32)  # (8, 32): columns 0 … 15 are loaded, 16 … 31 filled

    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(halves[:, :16], gm(0).split(0, 32)[:, :16])
        yield k.vec("dup", halves[:, 16:], scalar=1.0)
        yield from sync(k, Pipe.MTE2, Pipe.MTE3)
        yield from sync(k, Pipe.V, Pipe.MTE3, event=2)
        yield k.store(gm(1), ub(0))

    assert Tiny().findings(monkeypatch, program) == []


# -- one pipe ----


def _chain(serial: bool, between: int = 0) -> Program:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0), gm(0))
        yield from sync(k, Pipe.MTE2, Pipe.V)
        yield k.vec("relu", ub(512), ub(0))
        if between:
            yield k.stall(Pipe.V, between)
        second = k.vec("relu", ub(1024), ub(512))
        assert second.serial
        second.serial = serial
        yield second
        yield from sync(k, Pipe.V, Pipe.MTE3)
        yield k.store(gm(1), ub(1024))

    return program


def test_a_pipe_barrier_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Tiny().findings(monkeypatch, _chain(True)) == []
    found = only(Tiny().findings(monkeypatch, _chain(False)))
    assert (found.kind, found.missing) == (K.RAW, "pipe_barrier(V) before #4")
    assert (found.first and found.first.actor) == (found.second and found.second.actor) == "V"


def test_cycles_enough_between_need_no_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    from handwritten import TOY

    tail = TOY.core.vector.tail
    assert Tiny().findings(monkeypatch, _chain(False, between=tail)) == []
    assert len(Tiny().findings(monkeypatch, _chain(False, between=tail - 1))) == 1


# -- flags ----


def test_a_flag_that_is_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0), gm(0))
        yield k.wait_flag(Pipe.MTE2, Pipe.V, 3)
        yield k.vec("relu", ub(512), ub(0))

    found = only(Tiny().findings(monkeypatch, program))
    assert found.kind == K.NEVER_SET
    assert found.second is not None and found.second.index == 1
    assert found.missing == "set_flag(MTE2, V, 3): set 0 times"


def test_a_flag_that_is_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield from relu(k)
        yield k.set_flag(Pipe.MTE3, Pipe.V, 9)
        yield k.vec("dup", ub(4096), scalar=0.0)

    found = only(Tiny().findings(monkeypatch, program))
    assert found.kind == K.NEVER_WAITED
    assert found.missing == "wait_flag(MTE3, V, 9): set 1 times, waited for 0 times"


def test_a_flag_that_is_set_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0), gm(0))
        yield k.set_flag(Pipe.MTE2, Pipe.V, 1)
        yield k.load(ub(512), gm(0))
        yield k.set_flag(Pipe.MTE2, Pipe.V, 1)
        yield k.wait_flag(Pipe.MTE2, Pipe.V, 1)
        yield k.wait_flag(Pipe.MTE2, Pipe.V, 1)
        yield k.vec("add", ub(0), ub(0), ub(512))
        yield from sync(k, Pipe.V, Pipe.MTE3)
        yield k.store(gm(1), ub(0))

    found = only(Tiny().findings(monkeypatch, program))
    assert found.kind == K.SET_TWICE
    assert [s.index for s in (found.first, found.second) if s] == [1, 3]
    assert found.missing == "wait_flag(MTE2, V, 1) between the two"


# -- memory ----


def test_an_uninitialised_read_that_reaches_gm(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0, N - 16), gm(0, 0, N - 16))  # the last 16 elements are forgotten
        yield from sync(k, Pipe.MTE2, Pipe.V)
        yield k.vec("adds", ub(512), ub(0), scalar=1.0)
        yield from sync(k, Pipe.V, Pipe.MTE3)
        yield k.store(gm(1), ub(512))

    found = only(Tiny().findings(monkeypatch, program))
    assert (found.kind, found.space, found.start, found.nbytes) == (K.UNINITIALISED, "UB", 480, 32)
    assert found.first is not None and found.first.what == "adds"
    assert found.second is not None and found.second.what.startswith("copy_ub")
    assert "bytes 480…511 of GM operand 1 (output 0)" in found.hint


def test_lanes_that_are_not_stored_may_hold_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0, N - 16), gm(0, 0, N - 16))
        yield from sync(k, Pipe.MTE2, Pipe.V)
        yield k.vec("adds", ub(512), ub(0), scalar=1.0)
        yield from sync(k, Pipe.V, Pipe.MTE3)
        yield k.store(gm(1, 0, N - 16), ub(512, N - 16))

    assert Tiny().findings(monkeypatch, program) == []


def test_workspace_that_nothing_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0), gm(2))
        yield from sync(k, Pipe.MTE2, Pipe.MTE3)
        yield k.store(gm(1), ub(0))

    found = only(Tiny(workspace=(512,)).findings(monkeypatch, program))
    assert (found.kind, found.space) == (K.UNINITIALISED, "GM operand 2 (workspace 0)")
    assert (found.start, found.nbytes) == (0, 512)


def test_an_output_that_is_read_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0), gm(1))
        yield from sync(k, Pipe.MTE2, Pipe.MTE3)
        yield k.store(gm(1), ub(0))

    found = only(Tiny().findings(monkeypatch, program))
    assert (found.kind, found.space) == (K.UNINITIALISED, "GM operand 1 (output 0)")


@pytest.mark.parametrize(("space", "size"), [("UB", "ub"), ("L1", "l1")])
def test_a_buffer_overflows(monkeypatch: pytest.MonkeyPatch, space: str, size: str) -> None:
    from handwritten import TOY

    capacity = getattr(TOY.core, size).size

    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(Region.dense(space, -1, capacity - 256, (N,), F16), gm(0))

    found = only(Tiny().findings(monkeypatch, program))
    assert (found.kind, found.space) == (K.OUT_OF_BOUNDS, space)
    assert (found.start, found.nbytes) == (capacity, 256)
    assert found.missing == f"bytes within the {capacity} B of {space}"


def test_a_transfer_leaves_its_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0), gm(0, 16))  # 16 elements too far
        yield from sync(k, Pipe.MTE2, Pipe.MTE3)
        yield k.store(gm(1), ub(0))

    found = only(Tiny().findings(monkeypatch, program))
    assert (found.kind, found.space) == (K.OUT_OF_BOUNDS, "GM operand 0 (input 0)")
    assert (found.start, found.nbytes) == (512, 32)


def test_a_buffer_that_is_refused_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield from relu(k)
        k.alloc("UB", 1 << 30)

    found = only(Tiny().findings(monkeypatch, program))
    assert found.kind == K.REFUSED
    assert "1073741824 B asked" in str(found)


def test_misaligned(monkeypatch: pytest.MonkeyPatch) -> None:
    half = Region.dense("L0A", -1, 256, (1, 1, 16, 16), F16)
    tile = Region.dense("L1", -1, 0, (1, 1, 16, 16), F16)

    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load(Region.dense("L1", -1, 0, (N,), F16), gm(0))
        yield from sync(k, Pipe.MTE2, Pipe.MTE1)
        yield k.load_l0(half, tile)

    found = only(Tiny().findings(monkeypatch, program))
    assert (found.kind, found.space, found.start) == (K.MISALIGNED, "L0A", 256)
    assert found.missing == "an offset that is a multiple of 512 B"


@pytest.mark.parametrize("start", [192, 96])
def test_fixp_begins_at_a_row(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fractal of sums: 16 numbers of 4 B."""
    sums = Region.dense("L0C", -1, start, (16,), np.dtype(np.float32))

    def program(k: Kernel) -> Iterator[Instr]:
        yield k.fixpipe([(gm(1, 0, 16), sums)], 1)

    found = Tiny(B2).findings(monkeypatch, program)
    misaligned = [(f.space, f.start, f.missing) for f in found if f.kind == K.MISALIGNED]
    wrong = [("L0C", start, "an offset that is a multiple of 64 B")]
    assert misaligned == (wrong if start % 64 else [])


def test_a_dma_of_several_pieces_is_aligned_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.load_pairs([(ub(0, 16), gm(0, 0, 16)), (ub(40, 16), gm(0, 16, 16))])

    found = only(Tiny().findings(monkeypatch, program))
    assert (found.kind, found.start) == (K.MISALIGNED, 40)


# -- blocks, phases, cores ----


def _rows(first: int, n: int = 128, add: bool = False) -> Program:
    """Block b copies n elements from b · first on, doubled in block 1."""

    def program(k: Kernel) -> Iterator[Instr]:
        at = k.block * first
        yield k.load(ub(0, n), gm(0, at, n))
        yield from sync(k, Pipe.MTE2, Pipe.V)
        yield k.vec("muls", ub(512, n), ub(0, n), scalar=1.0 + k.block)
        yield from sync(k, Pipe.V, Pipe.MTE3)
        yield k.store(gm(1, at, n), ub(512, n), atomic=add)

    return program


def test_blocks_that_share_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Tiny(blocks=2)
    assert tiny.findings(monkeypatch, _rows(128)) == []
    assert tiny.findings(monkeypatch, _rows(112, add=True)) == []  # additions commute
    found = only(tiny.findings(monkeypatch, _rows(112)))
    assert (found.kind, found.where) == (K.WAW, "Handwritten, blocks 0 and 1")
    assert (found.space, found.start, found.nbytes) == ("GM operand 1 (output 0)", 224, 32)
    assert found.missing.startswith("an order between blocks: SyncAll")


def test_blocks_may_store_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(k: Kernel) -> Iterator[Instr]:
        yield k.vec("dup", ub(0), scalar=0.0)
        yield from sync(k, Pipe.V, Pipe.MTE3)
        yield k.store(gm(1), ub(0))

    assert Tiny(blocks=2).findings(monkeypatch, program) == []


def _leave(k: Kernel) -> Iterator[Instr]:
    """Half of the input into workspace."""
    yield k.load(ub(0, 128), gm(0, 128 * k.block, 128))
    yield from sync(k, Pipe.MTE2, Pipe.MTE3)
    yield k.store(gm(2, 128 * k.block, 128), ub(0, 128))


def _fetch(k: Kernel) -> Iterator[Instr]:
    """The other block's half from workspace."""
    other = 128 * (1 - k.block)
    yield k.load(ub(512, 128), gm(2, other, 128))
    yield from sync(k, Pipe.MTE2, Pipe.MTE3, event=2)
    yield k.store(gm(1, other, 128), ub(512, 128))


def test_phases_order_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(k: Kernel) -> Iterator[Instr]:
        yield from _leave(k)
        yield from _fetch(k)

    apart = Tiny(blocks=2, phases=2, workspace=(512,))
    assert apart.findings(monkeypatch, _leave, _fetch) == []
    found = only(Tiny(blocks=2, workspace=(512,)).findings(monkeypatch, both))
    assert (found.kind, found.space) == (K.RAW, "GM operand 2 (workspace 0)")
    assert found.where == "Handwritten, blocks 0 and 1"


def test_results_in_place_of_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that reads what another overwrites, when the output lies where the input is."""

    def mirrored(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0, 128), gm(0, 128 * (1 - k.block), 128))
        yield from sync(k, Pipe.MTE2, Pipe.MTE3)
        yield k.store(gm(1, 128 * k.block, 128), ub(0, 128))

    assert Tiny(blocks=2).findings(monkeypatch, mirrored) == []
    found = only(Tiny(blocks=2, aliases=((0, (1, 0)),)).findings(monkeypatch, mirrored))
    assert found.kind == K.RAW
    assert Tiny(blocks=2, aliases=((0, (1, 0)),)).findings(monkeypatch, _rows(128)) == []


@pytest.mark.parametrize("told", [True, False])
def test_flags_between_cores(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    def first(k: Kernel) -> Iterator[Instr]:
        yield k.load(ub(0), gm(0))
        yield from sync(k, Pipe.MTE2, Pipe.MTE3)
        yield k.store(gm(2), ub(0))
        if told:
            yield signal(k, 1, Pipe.MTE3, Pipe.MTE2, 0)

    def second(k: Kernel) -> Iterator[Instr]:
        if told:
            yield await_signal(k, Pipe.MTE3, Pipe.MTE2, 0)
        yield k.load(ub(0), gm(2))
        yield from sync(k, Pipe.MTE2, Pipe.MTE3)
        yield k.store(gm(1), ub(0))

    found = Tiny(chip=B2, workspace=(512,)).findings(monkeypatch, first, second)
    if told:
        assert found == []
        return
    race = only(found)
    assert race.kind == K.RAW
    assert [s.actor for s in (race.first, race.second) if s] == ["core 0 MTE3", "core 1 MTE2"]
    assert race.missing == (
        "CrossCoreSetFlag(MTE3, MTE2) after #3 of core 0 and CrossCoreWaitFlag before #0 of core 1"
    )


def test_a_queue_that_is_full_holds_the_scalar_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait behind which more comes than a queue holds is no deadlock, as on the chip."""
    depth = B2.core.scalar.queue_depth

    def sender(k: Kernel) -> Iterator[Instr]:
        yield isa.Instr(isa.Kind.LOCAL, Pipe.V, "work", 0, 9)
        yield signal(k, 1, Pipe.V, Pipe.V, 0)

    def receiver(k: Kernel) -> Iterator[Instr]:
        yield await_signal(k, Pipe.V, Pipe.V, 0)
        for i in range(3 * depth):
            yield k.vec("dup", ub(512 * (i % 4)), scalar=np.float16(i))

    assert Tiny(chip=B2).findings(monkeypatch, receiver, sender) != []  # core 0 is told nothing
    assert Tiny(chip=B2).findings(monkeypatch, sender, receiver) == []
