"""Recurrent networks unrolled: same values, on AI Core kernels only."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import CHIPS, check_run, count, graph_of, passed, same_values

from npusim import api
from npusim.compiler.options import CompileOptions
from npusim.compiler.passes.recurrent import unroll_recurrent
from npusim.ir import DType, Graph
from npusim.models.builder import GraphBuilder
from npusim.program.executable import TaskKind

STEPS, BATCH, SIZE, HIDDEN = 5, 3, 20, 24
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _net(op_type: str, direction: str = "bidirectional", lengths: bool = False) -> Graph:
    def write(g: GraphBuilder) -> str:
        both, n = 2 if direction == "bidirectional" else 1, GATES[op_type] * HIDDEN
        x = g.input("x", (STEPS, BATCH, SIZE))
        w, r = g.weight("w", (both, n, SIZE), 0.3), g.weight("r", (both, n, HIDDEN), 0.3)
        b = g.weight("b", (both, 2 * n), 0.3)
        known = g.constant("lengths", np.array([5, 2, 4]), DType.INT32) if lengths else ""
        return g.node(op_type, "net", x, w, r, b, known, direction=direction)

    return graph_of(write)


@pytest.mark.parametrize("op_type", GATES)
def test_a_product_for_all_steps_and_one_for_each(op_type: str) -> None:
    graph = _net(op_type)
    result = passed(unroll_recurrent, graph)
    same_values(graph, result)
    each = 2 if op_type == "GRU" else 1  # its candidate needs the reset gate first
    assert count(result, "Gemm") == 2 * (1 + each * STEPS)
    assert count(result, "Where") == 0


@pytest.mark.parametrize(
    ("op_type", "chip", "precision"),
    [("LSTM", "ascend910a", "fp16"), ("GRU", "ascend910b2", "fp32"), ("RNN", "toy", "fp16")],
)
def test_runs_on_ai_core(op_type: str, chip: str, precision: str) -> None:
    exe = check_run(_net(op_type, lengths=True), chip, precision, tile_level=True)
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)


def test_runs_unoptimised() -> None:
    graph, chip = _net("LSTM", "reverse"), CHIPS["ascend910b2"]
    exe = api.compile_graph(graph, chip, options=CompileOptions("fp32", level=0))
    x = {"x": np.random.default_rng(0).standard_normal((STEPS, BATCH, SIZE), np.float32)}
    got = api.run(exe, chip, inputs=x).outputs["net"]
    want = api.run(api.compile_graph(graph, chip, precision="fp32"), chip, inputs=x).outputs["net"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
