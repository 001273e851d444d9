"""Chips whose cube is not 16³: the same numbers, and a time that follows the cube's rate."""

from __future__ import annotations

import numpy as np
import pytest

import npusim
from npusim.chip import load_chip
from npusim.chip.spec import ChipSpec

NAMES = ("m", "n", "k.float16")


def chip_of(side: int) -> ChipSpec:
    """The 910A with cubes of `side`³."""
    return load_chip("ascend910a", [f"core.cube.{name}={side}" for name in NAMES])


@pytest.mark.parametrize("model", ["bert-tiny", "resnet18"])
def test_numbers_do_not_depend_on_the_cube(model: str) -> None:
    found = []
    for side in (8, 16, 32):
        loaded = npusim.load_model(
            model, shapes={"input": (1, 3, 32, 32)} if "res" in model else None
        )
        chip = chip_of(side)
        exe = npusim.compile_graph(loaded.graph, chip)
        run = npusim.run(exe, chip, inputs=npusim.make_inputs(loaded), tile_level=True)
        found.append(next(iter(run.outputs.values())).astype(np.float32))
    np.testing.assert_allclose(found[0], found[1], rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(found[2], found[1], rtol=2e-2, atol=2e-2)


def test_a_small_cube_binds_and_a_large_one_does_not() -> None:
    model = npusim.load_model("gemm-4096")
    cycles, busy = {}, {}
    for side in (8, 16, 32):
        chip = chip_of(side)
        run = npusim.run(npusim.compile_graph(model.graph, chip), chip, timing_only=True)
        cycles[side] = run.timeline.total_cycles
        busy[side] = 4096**3 / side**3 / chip.cores.count / run.timeline.total_cycles
    assert cycles[8] > 3 * cycles[16] >= 3 * cycles[32]
    assert 0.9 < busy[8] <= 1
    assert busy[32] < busy[16] < busy[8]
