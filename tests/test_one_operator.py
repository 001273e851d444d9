"""Graphs of one operator, of any size: tile level gives what operator level gives, in its time.

The small buffers of the chip `toy` cut what others keep whole: no legal shape fails to tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_operator import FAMILIES, Case, array

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions, compile_graph

CHIPS = {name: load_chip(name) for name in ("toy", "ascend910a", "ascend910b2")}
#: Each type as it is: nothing becomes fp16.
OPTIONS = CompileOptions("must_keep_origin_dtype")
#: Largest difference, over an output's largest value: other orders of sums, polynomials.
WITHIN = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def check(case: Case, chip: str) -> list[str]:
    """Run both levels and compare; the kernels that ran."""
    graph, given_ = case.graph(), case.given()
    exe = compile_graph(graph, CHIPS[chip], OPTIONS)
    whole = api.run(exe, CHIPS[chip], inputs=given_)
    tiles = api.run(exe, CHIPS[chip], inputs=given_, tile_level=True)
    assert whole.timeline == tiles.timeline
    for name in graph.outputs:
        want, got = (r.outputs[name] for r in (whole, tiles))
        assert (want.shape, want.dtype) == (got.shape, got.dtype)
        a, b = (v.astype(np.float64) for v in (want, got))
        limit = WITHIN.get(want.dtype.name, 0.0)
        scale = float(np.abs(a, where=np.isfinite(a), out=np.zeros_like(a)).max(initial=0))
        np.testing.assert_allclose(b, a, rtol=limit, atol=limit * scale)
    return [t.call.kernel if t.call else "" for t in exe.tasks]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_levels_agree(family: str, data: st.DataObject) -> None:
    def pick(options: Sequence[Any]) -> Any:
        return options[data.draw(st.integers(0, len(options) - 1))]

    check(FAMILIES[family](pick), data.draw(st.sampled_from(["toy", "toy", *CHIPS])))


def first(options: Sequence[Any]) -> Any:
    """No choice."""
    return options[0]


F = "float32"


@pytest.mark.parametrize(
    ("op_type", "shapes", "fixed", "kernel"),
    [
        ("Pow", [(1,), (3, 50)], (0,), "Elementwise"),
        ("PRelu", [(1,), (1,)], (0,), "Elementwise"),
        ("Softmax", [(0,)], (), ""),
        ("MatMul", [(1, 0, 31, 32), (0, 32, 32)], (), ""),
        ("MatMul", [(0, 32, 17), (17, 129)], (1,), ""),
        ("MatMul", [(4, 0), (0, 5)], (), ""),
    ],
)
def test_corners(
    op_type: str, shapes: list[tuple[int, ...]], fixed: tuple[int, ...], kernel: str
) -> None:
    inputs = tuple(np.abs(array(first, s, F)) for s in shapes)
    for chip in CHIPS:
        assert kernel in check(Case(op_type, inputs, fixed=fixed), chip)


@pytest.mark.parametrize("value", [True, False])
def test_a_constant_condition(value: bool) -> None:
    x, y = (array(first, (3, 40), F) for _ in range(2))
    condition = np.array(value)
    for operands in ((condition, x, y[0]), (condition, x[:1], y)):
        assert check(Case("Where", operands, fixed=(0,)), "toy") == ["Elementwise"]


@pytest.mark.parametrize("op", ["And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_constants_of_logic(op: str) -> None:
    x = array(first, (3, 40), "int32" if op.startswith("Bit") else "bool")
    for fixed in (0, 1):
        operands = (x.reshape(-1)[:1], x) if fixed == 0 else (x, x.reshape(-1)[:1])
        assert check(Case(op, operands, fixed=(fixed,)), "toy") == ["Elementwise"]


@pytest.mark.parametrize("op", ["Gemm", "ReduceLogSumExp", "ReduceL2", "ReduceMean"])
def test_steps_run_on_cores(op: str) -> None:
    """What no single kernel takes is split into what kernels take."""
    if op == "Gemm":
        a, b, c = array(first, (33, 20), F), array(first, (20, 17), F), array(first, (33, 1), F)
        cases = [
            Case(op, (a, b, c), {"alpha": 0.5, "beta": 2.0}, fixed=fixed)
            for fixed in ((), (1,), (1, 2))
        ] + [Case(op, (a, b), {"alpha": 0.5})]
    else:
        x = array(first, (3, 5, 4, 7, 6), F)
        axes = [np.array(a, np.int64) for a in ([0, 2, 4], [1, 3], [-1, 0], [1])]
        cases = [Case(op, (x, a), {"keepdims": keep}, fixed=(1,)) for a in axes for keep in (0, 1)]
    for case in cases:
        for chip in CHIPS:
            assert "" not in check(case, chip)


def test_pools_of_any_rank_run_on_cores() -> None:
    """A row is an image; a global pool has one row of everything."""
    row, volume = array(first, (2, 17, 40), F), array(first, (1, 3, 4, 5, 6), F)
    window = {"kernel_shape": [3], "strides": [2], "pads": [1, 0], "ceil_mode": 1}
    for chip in CHIPS:
        for op in ("MaxPool", "AveragePool"):
            assert "Pool" in check(Case(op, (row,), window), chip)
        for op in ("GlobalMaxPool", "GlobalAveragePool"):
            for x in (row, volume):
                assert "" not in check(Case(op, (x,)), chip)


def test_positions_run_on_cores() -> None:
    x = array(first, (5, 7, 33), "float16")
    for chip in ("ascend910a", "ascend910b2"):
        assert check(Case("Hardmax", (x,), {"axis": -1}), chip) == ["ArgValue", "OneHot"]
        found = check(Case("ArgMax", (x,), {"axis": 1, "keepdims": 1}), chip)
        assert found[:2] == ["Transpose", "ArgValue"]
        k = np.array([4], np.int64)
        assert check(Case("TopK", (x, k), {"axis": -1}, (1,), 2), chip)[0] == "TopKD"
        assert check(Case("TopK", (x, k), {"axis": 0}, (1,), 2), chip) == [""]
