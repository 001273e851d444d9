"""The fast engine, folding or not, equals SimPy in every number; every launch accounts for itself.

Each example is checked in full: cycles, busy, idle and stalled cycles of every pipe by reason,
bytes, instructions, the scalar unit.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from random_launches import MAKERS, launch, random_plan
from random_programs import RandomProgram, random_memory
from tiny import CHIPS, run_classes

from npusim.chip.spec import ChipSpec
from npusim.ir import DType, Layout
from npusim.machine.gm import GmState, cold, hot
from npusim.machine.launch import time_launch
from npusim.machine.stats import CoreStats
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan, kernel_names

SIZES = {"toy": (8, 16, 30), "ascend910a": (8, 16, 40), "ascend910b2": (8, 16, 40)}
SEEDS = st.integers(0, 2**32)


def numbers(cores: list[CoreStats] | tuple[CoreStats, ...]) -> list[object]:
    """Everything that the engines must agree on."""
    return [
        (
            s.weight, s.cycles, s.busy, s.idle, [Counter(d) for d in s.stall], s.moved,
            s.instructions, s.scalar_busy, s.scalar_stall,
        )
        for s in cores
    ]  # fmt: skip


def check_equal(chip: ChipSpec, name: str, args: KernelArgs, plan: Plan, gm: GmState) -> None:
    """SimPy, the scoreboard and the folding scoreboard give the same launch."""
    want = time_launch(chip, name, args, plan, gm, engine="simpy")
    for fold in (False, True):
        got = time_launch(chip, name, args, plan, gm, fold=fold)
        assert numbers(got.cores) == numbers(want.cores)
        assert (got.cycles, got.l2_bytes) == (want.cycles, want.l2_bytes)
        assert got.hbm_bytes == pytest.approx(want.hbm_bytes)


def test_every_kernel_has_launches_here() -> None:
    assert set(MAKERS) == set(kernel_names())


@pytest.mark.parametrize("name", sorted(MAKERS))
# Many random shapes suit few chips (a toy's buffers): those that do not fit are drawn again.
@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(seed=SEEDS)
@example(seed=3403)  # LRN: one class in a loop, the other between two short ones
@example(seed=114151701)  # BlockDepthwise: a gradient whose operands fill the toy's UB
def test_kernels(name: str, seed: int) -> None:
    rng = Random(seed)
    chip = CHIPS[rng.choice(list(CHIPS))]
    args = MAKERS[name](rng, rng.choice(SIZES[chip.name]))
    plan = random_plan(rng, name, args, chip)
    assume(plan is not None)
    assert plan is not None
    share = rng.random()
    some = GmState(tuple((i, share * s) for i, s in cold(plan).hbm_share))
    check_equal(chip, name, args, plan, rng.choice([cold(plan), hot(plan), some]))


@settings(max_examples=40, deadline=None)
@given(SEEDS)
@example(21)  # found folding that counted the same wait twice
@example(53)
def test_programs(seed: int) -> None:
    rng = Random(seed)
    chip = CHIPS[rng.choice(list(CHIPS))]
    alike = RandomProgram.of(rng)
    programs = [alike if rng.random() < 0.5 else RandomProgram.of(rng) for _ in range(3)]
    classes = [(p, rng.randint(1, 12)) for p in programs[: rng.choice([1, 1, 2, 3])]]
    gm = random_memory(rng)
    want = numbers(run_classes(chip, classes, "simpy", gm))
    assert numbers(run_classes(chip, classes, "fast", gm, fold=False)) == want
    assert numbers(run_classes(chip, classes, "fast", gm)) == want


F16 = DType.FLOAT16


def large(name: str) -> KernelArgs:
    """A launch whose loops run long."""
    if name == "LibraryMatMul":
        a, b = (OperandSpec(s, F16, Layout.FRACTAL_NZ) for s in ((800, 1600), (1600, 960)))
        return launch("MatMul", (a, b), OperandSpec((800, 960), F16, Layout.FRACTAL_NZ))
    if name == "MatMul":
        a, b = OperandSpec((400, 800), F16, Layout.FRACTAL_NZ), OperandSpec((800, 500), F16)
        return launch("MatMul", (a, b), OperandSpec((400, 500), F16))
    if name == "Conv2D":
        x = OperandSpec((2, 128, 40, 40), F16, Layout.NC1HWC0)
        w = OperandSpec((100, 128, 3, 3), F16, Layout.FRACTAL_Z)
        y = OperandSpec((2, 100, 40, 40), F16, Layout.NC1HWC0)
        return launch("Conv", (x, w), y, group=1, strides=(1, 1), pads=(1,) * 4, dilations=(1, 1))
    x = OperandSpec((2000, 503), F16)
    if name == "Softmax":
        return launch("Softmax", (x,), x, axis=-1)
    return launch("Add", (x, x), x)


@pytest.mark.parametrize("chip", list(CHIPS))
@pytest.mark.parametrize("name", ["MatMul", "LibraryMatMul", "Conv2D", "Elementwise", "Softmax"])
def test_large_launches_fold_and_do_not_change(chip: str, name: str) -> None:
    spec, args = CHIPS[chip], large(name)
    plan = choose_plan(name, args, spec)
    for gm in (cold(plan), hot(plan)):
        full = time_launch(spec, name, args, plan, gm, fold=False)
        folded = time_launch(spec, name, args, plan, gm)
        assert numbers(folded.cores) == numbers(full.cores)
        if chip == "toy":
            assert folded.events < full.events


@pytest.mark.parametrize("chip", list(CHIPS))
def test_both_engines_keep_the_same_spans(chip: str) -> None:
    """Every instruction's interval, which add up to the busy cycles."""
    spec, args = CHIPS[chip], large("Softmax")
    small = launch("Softmax", (OperandSpec((64, 100), F16),), OperandSpec((64, 100), F16), axis=-1)
    for a in (small, args) if chip != "toy" else (small,):
        plan = choose_plan("Softmax", a, spec)
        fast = time_launch(spec, "Softmax", a, plan, spans=True).slowest
        simpy = time_launch(spec, "Softmax", a, plan, engine="simpy", spans=True).slowest
        assert sorted(fast.spans) == sorted(simpy.spans)
        for pipe, busy in enumerate(fast.busy):
            assert sum(end - start for p, _, start, end in fast.spans if p == pipe) == busy
