"""Recorded rows of operators that CANN alone has, and of plain products, replayed.

Times of the 310 are msprof's (Ascend/workload_analysis); each row stands for a structure that
makes its time, so a bound on its error holds the structure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from npusim.chip import load_chip
from npusim.explore.replay import launch_of, replay
from npusim.explore.replay.replay import CALL
from npusim.frontends.recorded import RecordedOp, RecordedTensor

ND = "ND"
#: type → inputs, outputs, attributes, blocks, measured µs, bound of the error
ROWS: dict[str, tuple[str, list, list, dict[str, Any], int, float, float]] = {
    "rows of 45 values, one at a time": (
        "InstanceNorm",
        [(ND, "float32", (111, 111, 105, 45)), *[(ND, "float32", (111,))] * 2],
        [(ND, "float32", (111, 111, 105, 45))],
        {"epsilon": 1e-6}, 1, 1295477.3, 0.1,
    ),
    "short rows, stored one by one": (
        "TopKD",
        [(ND, "float16", (667, 115, 50, 16)), (ND, "float16", (8192,))],
        [(ND, "float16", (667, 115, 50, 16))] * 2,
        {"dim": -1}, 2, 260340.3, 0.1,
    ),
    "four merge levels": (
        "TopKD",
        [(ND, "float16", (1412, 1885)), (ND, "float16", (8192,))],
        [(ND, "float16", (1412, 189))] * 2,
        {}, 2, 12239.7, 0.1,
    ),
    "reduced axes on both sides": (
        "LpNorm",
        [(ND, "float32", (39, 113, 170, 68))],
        [(ND, "float32", (113,))],
        {"axes": (0, 2, 3), "p": 2, "keep_dims": True}, 1, 225133.4, 0.1,
    ),
    "two logarithms by a series": (
        "BinaryCrossEntropy",
        [(ND, "float16", (1675, 1999))] * 2,
        [(ND, "float16", ())],
        {"reduction": "sum"}, 1, 73444.5, 0.1,
    ),
    "weights read once a batch": (
        "FullyConnection",
        [
            ("FRACTAL_NZ", "float16", (16, 5233, 4, 16, 16)),
            ("FRACTAL_Z", "float16", (5233, 40, 16, 16)),
            ("NC1HWC0", "float16", (1, 40, 1, 1, 16)),
        ],
        [("NC1HWC0", "float16", (16, 40, 4, 16, 16))],
        {}, 2, 40936.3, 0.1,
    ),
    "sums of squares": (
        "L2Loss", [(ND, "float32", (1979, 1242))], [(ND, "float32", ())], {}, 1, 590.6, 0.1,
    ),
}  # fmt: skip


def _op(kind: str, ins: list, outs: list, attrs: dict[str, Any], blocks: int, us: float) -> Any:
    sides = (tuple(RecordedTensor(*t) for t in side) for side in (ins, outs))
    pairs = tuple(sorted(attrs.items()))
    return RecordedOp("net", kind, kind, "AI_CORE", blocks, *sides, 1, us, attrs=pairs)


@pytest.mark.parametrize("name", list(ROWS))
def test_the_structure_gives_the_time(name: str) -> None:
    kind, ins, outs, attrs, blocks, us, bound = ROWS[name]
    op = replace(_op(kind, ins, outs, attrs, blocks, us), core_time_only=True)
    row = replay([op], load_chip("ascend310")).rows[0]
    assert row.predicted_us is not None, row.reason
    assert row.block_dim == blocks
    assert abs(row.predicted_us / us - 1) < bound


CONVOLUTIONS = {
    "forward": (
        "Conv2D", [(5, (32, 1, 224, 224, 8)), (4, (121, 4, 16, 8)), (1, (64,))],
        (32, 8, 55, 55, 8), 16, 312.8,
    ),
    "input": (
        "Conv2DBackpropInput", [(0, (4,)), (4, (432, 16, 16, 8)), (5, (32, 32, 13, 13, 8))],
        (32, 48, 13, 13, 8), 24, 99.4,
    ),
    "weights": (
        "Conv2DBackpropFilter",
        [(5, (32, 32, 13, 13, 8)), (0, (4,)), (5, (32, 32, 13, 13, 8))],
        (288, 16, 16, 8), 24, 61.1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_convolutions_in_fp32_and_blocks_of_8(name: str) -> None:
    kind, ins, out, blocks, us = CONVOLUTIONS[name]
    kinds = {0: ("ND", "int32"), 1: ("ND", "float32"), 4: ("FRACTAL_Z", "float32"),
             5: ("NC1HWC0", "float32")}  # fmt: skip
    op = _op(kind, [(*kinds[k], s) for k, s in ins], [("ND", "float32", out)], {}, blocks, us)
    row = replay([op], load_chip("ascend910b2")).rows[0]
    assert row.predicted_us is not None, row.reason
    assert abs(row.predicted_us / us - 1) < 0.2


def test_a_call_costs_more_than_its_kernel_and_finds_what_it_left() -> None:
    square = (ND, "float16", (1024, 1024))
    kernel = _op("GEMM", [square] * 2, [square], {}, 24, 15.65)
    call = replace(kernel, call_time=True, repeated=True)
    cold, hot = (replay([op], load_chip("ascend910b2")).rows[0] for op in (kernel, call))
    assert cold.predicted_us is not None and hot.predicted_us is not None
    assert hot.predicted_us < cold.predicted_us + CALL * 1e6
    warm = replay([replace(kernel, repeated=True)], load_chip("ascend910b2")).rows[0]
    assert hot.predicted_us == pytest.approx((warm.predicted_us or 0) + CALL * 1e6, abs=0.01)


def test_statistics_of_an_instance_norm_are_per_channel() -> None:
    kind, ins, outs, attrs, blocks, us, _ = ROWS["rows of 45 values, one at a time"]
    launch = launch_of(_op(kind, ins, outs, attrs, blocks, us))
    assert launch.args.outputs[1].shape == (111, 111, 1, 1)
