"""Cycles of a few launches, to the cycle: a change of any timing shows here.

When a change is meant, renew the file and say in the commit why:

    PYTHONPATH=. python tests/machine/test_golden.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import npusim.kernels  # noqa: F401
from npusim.chip import load_chip
from npusim.ir import DType, Layout
from npusim.machine.gm import cold, hot
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

FILE = Path(__file__).with_name("golden_cycles.json")
CHIPS = ("ascend910a", "ascend910b2")


def spec(*shape: int, layout: Layout = Layout.ND) -> OperandSpec:
    """An fp16 operand."""
    return OperandSpec(shape, DType.FLOAT16, layout)


def launches() -> dict[str, KernelArgs]:
    """Kernel → a launch of it."""
    rows = spec(1536, 512)
    image, out = (spec(4, c, 28, 28, layout=Layout.NC1HWC0) for c in (128, 100))
    weights = spec(100, 128, 3, 3, layout=Layout.FRACTAL_Z)
    window = {"dilations": (1, 1), "group": 1, "pads": (1,) * 4, "strides": (1, 1)}
    return {
        "MatMul": KernelArgs("MatMul", (spec(1000, 768), spec(768, 500)), (spec(1000, 500),)),
        "Conv2D": KernelArgs("Conv", (image, weights), (out,), tuple(sorted(window.items()))),
        "Elementwise": KernelArgs("Add", (rows, spec(512)), (rows,)),
        "Softmax": KernelArgs("Softmax", (rows,), (rows,), (("axis", -1),)),
    }


def measure(name: str, kernel: str) -> dict[str, object]:
    """Block dim, cycles with nothing and with everything in L2, instructions."""
    chip, args = load_chip(name), launches()[kernel]
    plan = choose_plan(kernel, args, chip)
    cold_run, hot_run = (time_launch(chip, kernel, args, plan, g(plan)) for g in (cold, hot))
    return {
        "block_dim": plan.block_dim, "cold": cold_run.cycles, "hot": hot_run.cycles,
        "l2_bytes": cold_run.l2_bytes, "instructions": [c.instructions for c in cold_run.cores],
    }  # fmt: skip


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kernel", list(launches()))
def test_cycles_are_as_recorded(chip: str, kernel: str) -> None:
    assert measure(chip, kernel) == json.loads(FILE.read_text())[chip][kernel]


if __name__ == "__main__":
    found = {chip: {kernel: measure(chip, kernel) for kernel in launches()} for chip in CHIPS}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
