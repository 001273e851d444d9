"""On how many cores a launch runs."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import CHIPS, graph_of

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim import api
from npusim.chip.spec import ChipSpec
from npusim.compiler import CompileOptions, core_count
from npusim.compiler.options import CompileContext
from npusim.ir import DType
from npusim.models import random_inputs
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan


def best_plan(kernel: str, args: KernelArgs, chip: ChipSpec) -> Plan:
    return core_count.best_plan(kernel, args, CompileContext(chip, CompileOptions("fp16")))


ROWS = OperandSpec((48, 2048), DType.FLOAT16)
ADD = KernelArgs("Add", (ROWS, ROWS), (ROWS,))


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
def test_a_small_launch_takes_few(chip: str) -> None:
    spec = CHIPS[chip]
    every, best = choose_plan("Elementwise", ADD, spec), best_plan("Elementwise", ADD, spec)
    assert every.block_dim == spec.vector_cores() > 2 * best.block_dim
    free = spec.model_copy(
        update={"scheduler": spec.scheduler.model_copy(update={"per_block": 0.0})}
    )
    assert best_plan("Elementwise", ADD, free) == choose_plan("Elementwise", ADD, free)


def test_a_large_launch_takes_all() -> None:
    a = OperandSpec((4096, 4096), DType.FLOAT16)
    args = KernelArgs("MatMul", (a, a), (a,))
    for spec in CHIPS.values():
        assert best_plan("MatMul", args, spec) == choose_plan("MatMul", args, spec)


def test_it_is_faster_and_the_same_numbers() -> None:
    """O1 takes all cores that the tilings can use, O2 weighs them."""
    graph = graph_of(lambda g: g.node("Sigmoid", "s", g.input("x", (48, 2048))))
    chip, inputs = CHIPS["ascend910b2"], random_inputs(graph)
    runs = []
    for level in (1, 2):
        exe = api.compile_graph(graph, chip, options=CompileOptions("fp16", level=level))
        runs.append(api.run(exe, chip, inputs=inputs, tile_level=True))
    assert runs[1].timeline.total_cycles < runs[0].timeline.total_cycles
    for name, value in runs[0].outputs.items():
        np.testing.assert_allclose(runs[1].outputs[name], value, atol=1e-3)  # a Cast is fused
