"""Tilings for fewer cores, as O3 tries them: right at tile level, timed in the right state."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from random_launches import MAKERS, launch
from tiny import CHIPS

from npusim.compiler.select import CANDIDATES
from npusim.explore.tiling_candidates import (
    core_counts,
    ranked_tilings,
    restated,
)
from npusim.ir import DType
from npusim.ir.layout import blocks
from npusim.machine.gm import cold, footprint, visit
from npusim.machine.l2 import L2Cache
from npusim.machine.launch import run_tile_level, time_launch
from npusim.program.kernel import OperandSpec, choose_plan, get_kernel


def test_fewer_cores() -> None:
    chip = CHIPS["ascend910b2"]
    assert list(core_counts(chip)) == [24, 12, 6, 3, 1]
    cores = chip.with_cores(6).cores
    assert (cores.count, cores.vector_count, chip.cores.count) == (6, 12, 24)


#: Kernels whose inputs may be any numbers: no indices, no masks.
_PLAIN = sorted(
    {"Elementwise", *(k for names in CANDIDATES.values() for k in names)}
    - {"Gather", "GatherND", "ScatterElements", "ScatterRows"}
)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Numbers of a type, small whole ones where it is no float."""
    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("name", [k for k in _PLAIN if not k.startswith(("Flash", "ScaledMask"))])
@pytest.mark.parametrize("seed", range(3))
def test_tilings_for_fewer_cores_compute_the_same(name: str, seed: int) -> None:
    """At tile level on the whole chip: as the compiler's plan does, to the last rounding."""
    rng, kernel = Random(f"{name} {seed}"), get_kernel(name)
    drawn = (
        (CHIPS[rng.choice(["ascend910a", "ascend910b2"])], MAKERS[name](rng, 24)) for _ in range(50)
    )
    chip, args = next(
        (c, a)
        for c, a in drawn
        if not kernel.refuse(a, c) and any(True for _ in kernel.tilings(a, c))
    )
    default = choose_plan(name, args, chip)
    values = np.random.default_rng(seed)
    inputs = [
        None if o is None else numbers(values, o.storage_shape, o.dtype.np) for o in args.inputs
    ]

    def outputs(plan):
        arrays = [np.zeros(o.storage_shape, o.dtype.np) for o in args.outputs]
        run_tile_level(chip, name, args, plan, [*inputs, *arrays])
        return arrays

    want = outputs(default)
    for cores in core_counts(chip):
        tilings = ranked_tilings(name, args, chip, cores)
        for tiling in (tilings[0], tilings[-1]):
            for got, exact in zip(outputs(kernel.plan(args, chip, tiling)), want, strict=True):
                loose = 2e-2 if exact.dtype.itemsize == 2 else 1e-4
                np.testing.assert_allclose(
                    got.astype(np.float64), exact.astype(np.float64), rtol=loose, atol=loose
                )


def test_a_state_seen_by_another_plan() -> None:
    """As if that plan had run in the other's place."""
    chip = CHIPS["ascend910a"]
    sides = ((400, 300), (300, 500), (400, 500))
    a, b, y = (OperandSpec(side, DType.FLOAT16) for side in sides)
    args = launch("MatMul", (a, b), y)
    kernel = get_kernel("MatMul")
    plans = [kernel.plan(args, chip, t) for t in list(kernel.tilings(args, chip))[:40:8]]
    ends = np.cumsum([blocks(0 if o is None else o.nbytes, 512) * 512 for o in args.operands])
    ranges = {
        i: (int(end), o.nbytes)
        for i, (o, end) in enumerate(zip(args.operands, ends, strict=True))
        if o is not None and i in plans[0].traffic
    }

    def state(plan):
        l2 = L2Cache(chip.l2.size)
        first = ranges[0]
        l2.touch([(first[0], first[0] + first[1] // 2)])
        return visit(l2, footprint(plan, len(args.inputs), ranges))

    assert state(plans[0]) != cold(plans[0])
    for plan in plans:
        got = restated(state(plans[0]), args, plans[0], plan)
        for (i, share), (j, other) in zip(got.hbm_share, state(plan).hbm_share, strict=True):
            assert i == j and share == pytest.approx(other)
        assert time_launch(chip, "MatMul", args, plan, got, coupled=False).cycles > 0
