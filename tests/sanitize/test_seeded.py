"""Bugs planted into real kernels: the sanitizer finds each and says what is missing.

Some are executed at tile level too: there the numbers come out wrong, as they would on the chip.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import seeded
from random_attention_launches import MAKERS
from seeded import Launch, Mutation, changed, dropped, early, flags_between, shifted, signals

import npusim.kernels  # noqa: F401
from npusim.program.isa import Instr, Kind, Pipe
from npusim.program.kernel import get_kernel
from npusim.sanitize import Finding, FindingKind

K = FindingKind
RACES = {K.RAW, K.WAR, K.WAW}
LOADS = ("copy_gm", "copy_gm_l1")

LAUNCHES: dict[str, Launch] = {
    "softmax": seeded.softmax("toy", rows=60),
    "add": seeded.add("toy", 12000),
    "norm": seeded.norm("toy"),
    "matmul": seeded.matmul("toy"),
    "matmul ND": seeded.matmul_nd("toy"),
    "conv": seeded.conv("toy"),
    "matmul with FIXP": seeded.matmul("ascend910b2", 500, 900, 400),
}


def is_load(ins: Instr) -> bool:
    """GM → UB or L1."""
    return ins.op in LOADS


def is_store(ins: Instr) -> bool:
    """UB → GM."""
    return ins.op == "copy_ub"


def is_mmad(ins: Instr) -> bool:
    """Cube."""
    return ins.op == "mmad"


def instructions(launch: Launch) -> list[Instr]:
    """Those of the first block's cores."""
    plan = launch.plan
    members = get_kernel(launch.kernel).members(launch.args, launch.chip, plan, 0, 0, True)
    return [ins for m in members for ins in m.program]


def planted(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Mutation]
) -> list[Finding]:
    """What is found after a mutation."""
    with monkeypatch.context() as patch:
        launch.mutated(patch, make)
        found = launch.findings()
    assert found, "the bug was not found"
    return found


def wrong(launch: Launch, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Mutation]) -> bool:
    """Whether the numbers at tile level differ from the sound kernel's."""
    good = launch.outputs()
    with monkeypatch.context() as patch:
        launch.mutated(patch, make)
        bad = launch.outputs()
    return not all(np.array_equal(a, b) for a, b in zip(good, bad, strict=True))


@pytest.mark.parametrize("name", list(LAUNCHES))
def test_without_a_bug_there_are_no_findings(name: str) -> None:
    assert LAUNCHES[name].findings() == []


# -- flags ----


@pytest.mark.parametrize("name", list(LAUNCHES))
def test_flags_between_any_two_pipes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the flags from one pipe to another, a race between them names just these."""
    launch = LAUNCHES[name]
    waits = {i.flag[:2] for i in instructions(launch) if i.kind == Kind.WAIT}
    assert len(waits) >= 4
    for src, dst in sorted(waits):
        a, b = Pipe(src), Pipe(dst)
        found = planted(launch, monkeypatch, lambda a=a, b=b: dropped(flags_between(a, b)))  # type: ignore[misc]
        races = [f for f in found if f.kind in RACES]
        assert any(f"set_flag({a.name}, {b.name}) after" in f.missing for f in races)
        for f in races:
            assert f.first is not None and f.second is not None
            assert (f.first.actor, f.second.actor) == (a.name, b.name)
            assert ".py:" in f.first.source and ".py:" in f.second.source


def test_one_pair_of_flags_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    one = lambda: dropped(flags_between(Pipe.V, Pipe.MTE3), 6, 7)  # noqa: E731
    (race,) = planted(LAUNCHES["softmax"], monkeypatch, one)
    assert race.kind == K.RAW and race.space == "UB"
    assert race.missing.startswith("set_flag(V, MTE3) after #")
    assert wrong(LAUNCHES["softmax"], monkeypatch, one)


@pytest.mark.parametrize(("kind", "want"), [(Kind.WAIT, K.SET_TWICE), (Kind.SET, K.NEVER_SET)])
def test_half_a_pair(kind: Kind, want: FindingKind, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(ins: Instr) -> bool:
        return flags_between(Pipe.MTE2, Pipe.V)(ins) and ins.kind == kind

    found = planted(LAUNCHES["norm"], monkeypatch, lambda: dropped(half, 3, 3))
    assert want in {f.kind for f in found}


@pytest.mark.parametrize("name", ["softmax", "add", "norm", "conv", "matmul"])
def test_dropped_flags_give_wrong_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources are read when an instruction starts and results written when it completes."""
    first = Pipe.M if name in ("conv", "matmul") else Pipe.MTE2
    broken = lambda: dropped(flags_between(first, Pipe.V))  # noqa: E731
    assert wrong(LAUNCHES[name], monkeypatch, broken)
    assert planted(LAUNCHES[name], monkeypatch, broken)


@pytest.mark.parametrize(("src", "dst"), [(Pipe.MTE2, Pipe.V), (Pipe.V, Pipe.MTE3)])
def test_a_flag_set_before_what_it_stands_for(
    src: Pipe, dst: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """set_flag and the instruction before it have changed places."""

    def sets(ins: Instr) -> bool:
        return ins.kind == Kind.SET and ins.flag[:2] == (src, dst)

    launch = LAUNCHES["softmax"]
    with monkeypatch.context() as patch:
        launch.reordered(patch, early(sets))
        found = launch.findings()
    missing = f"set_flag({src.name}, {dst.name}) after #"
    assert any(f.kind == K.RAW and f.missing.startswith(missing) for f in found)


def test_flags_between_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention on a cube core and two vector cores, which meet in workspace."""
    args = MAKERS["FlashAttentionScore"](Random(5), 8)
    launch = Launch(seeded.CHIPS["ascend910b2"], "FlashAttentionScore", args)
    found = planted(launch, monkeypatch, lambda: dropped(signals))
    races = [f for f in found if f.kind in RACES]
    assert any("CrossCoreSetFlag(FIXP, MTE2)" in f.missing for f in races)
    assert all("workspace" in f.space for f in races)


# -- order within the vector pipe ----


@pytest.mark.parametrize("name", ["softmax", "norm"])
def test_pipe_barriers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(LAUNCHES[name], monkeypatch, lambda: seeded.without_barriers)
    assert {f.kind for f in found} == {K.RAW}
    assert all(f.missing.startswith("pipe_barrier(V) before #") for f in found)
    assert wrong(LAUNCHES[name], monkeypatch, lambda: seeded.without_barriers)


# -- memory ----


@pytest.mark.parametrize("name", list(LAUNCHES))
def test_the_first_load_is_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(LAUNCHES[name], monkeypatch, lambda: dropped(is_load, 0, 0))
    assert {f.kind for f in found} == {K.UNINITIALISED}
    assert all("GM operand" in f.hint for f in found)


def test_padding_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of K behind the end of a ragged tile are multiplied: they must be zero."""
    broken = lambda: changed(is_load, seeded.unpadded)  # noqa: E731
    found = planted(LAUNCHES["matmul ND"], monkeypatch, broken)
    assert {(f.kind, f.space) for f in found} == {(K.UNINITIALISED, "L1")}


@pytest.mark.parametrize("name", ["softmax", "add", "matmul", "conv"])
def test_a_load_goes_32_bytes_too_far(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(LAUNCHES[name], monkeypatch, lambda: changed(is_load, shifted("dst", 32)))
    kinds = {f.kind for f in found}
    assert K.UNINITIALISED in kinds and kinds & RACES
    assert wrong(LAUNCHES[name], monkeypatch, lambda: changed(is_load, shifted("dst", 32)))


@pytest.mark.parametrize("name", ["softmax", "add", "matmul", "conv"])
def test_a_store_takes_the_neighbours_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(LAUNCHES[name], monkeypatch, lambda: changed(is_store, shifted("src", 32)))
    assert {f.kind for f in found} >= {K.UNINITIALISED, K.WAR}


@pytest.mark.parametrize("name", ["softmax", "add", "norm", "matmul"])
def test_stores_leave_their_operand(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(LAUNCHES[name], monkeypatch, lambda: changed(is_store, shifted("dst", 32)))
    out = [f for f in found if f.kind == K.OUT_OF_BOUNDS]
    assert len(out) == 1 and out[0].nbytes == 32 and "(output 0)" in out[0].space


def test_the_cube_reads_another_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(LAUNCHES["matmul"], monkeypatch, lambda: changed(is_mmad, shifted("a", 512)))
    assert {f.space for f in found if f.kind == K.OUT_OF_BOUNDS} == {"L0A"}
    assert {f.space for f in found if f.kind in RACES} == {"L0A"}
    found = planted(LAUNCHES["matmul"], monkeypatch, lambda: changed(is_mmad, shifted("b", 32)))
    assert {f.space for f in found if f.kind == K.MISALIGNED} == {"L0B"}


@pytest.mark.parametrize(("name", "space"), [("softmax", "UB"), ("add", "UB"), ("matmul", "L1")])
def test_allocations_are_too_small(name: str, space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that lie closer together than they are long."""
    with monkeypatch.context() as patch:
        seeded.shrink_allocations(patch, space, 256)
        found = LAUNCHES[name].findings()
    races = [f for f in found if f.kind in RACES]
    assert races and {f.space for f in races} == {space}


# -- blocks ----


def test_phases_that_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention's gradients are cleared, summed and cast in three phases; here in one."""
    args = MAKERS["FlashAttentionScoreGrad"](Random(1), 8)
    launch = Launch(seeded.CHIPS["ascend910a"], "FlashAttentionScoreGrad", args)
    assert launch.plan.phases == 3 and launch.findings() == []
    launch.in_one_phase(monkeypatch)
    found = launch.findings(phases=1)
    races = [f for f in found if f.kind in RACES and "blocks" in f.where]
    assert races and all(f.missing.startswith("an order between blocks") for f in races)
