"""Fused attention at tile level against the operator, and against attention step by step."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from attending import SMALL, Case
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels.attention
from npusim.chip import load_chip
from npusim.ir import DType, Node, TensorType
from npusim.kernels import attention_vector
from npusim.kernels.attention_shape import band_starts
from npusim.kernels.cross_core import await_signal
from npusim.machine.launch import time_launch
from npusim.ops import compute_node, infer_node
from npusim.ops.training_attention import Shape
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

CASES = [
    ((1, 1, 1, 16, 16, 16), "SBH", ""),
    ((1, 2, 1, 64, 64, 64), "BSH", ""),
    ((1, 2, 2, 301, 301, 128), "SBH", "causal"),  # halves of bands differ, edges everywhere
    ((1, 2, 1, 300, 700, 128), "BSND", ""),
    ((2, 1, 1, 70, 140, 32), "SBH", "random"),
    ((1, 4, 2, 330, 330, 64), "BNSD", "full"),
    ((1, 1, 1, 90, 613, 64), "BSH", "corner"),
    ((1, 1, 1, 1, 40, 64), "BSH", ""),
    ((1, 2, 1, 296, 16, 128), "BSND", "causal"),  # masks in one half of a band only
    ((2, 2, 2, 48, 40, 64), "BSND", "row"),  # one row of bias for all queries of a batch
    ((1, 2, 2, 70, 330, 64), "BSND", "row"),
    ((1, 2, 1, 150, 340, 64), "BNSD", "bias"),  # in pieces of less than a tile
    ((1, 2, 1, 7, 1100, 64), "BNSD", "bias"),  # few rows, the widest tiles
    ((1, 1, 1, 40, 1500, 16), "BNSD", "left"),  # -inf over whole pieces and tasks
]


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2", *SMALL])
@pytest.mark.parametrize(("shape", "layout", "mask"), CASES)
def test_forward(
    chip: str, shape: tuple[int, int, int, int, int, int], layout: str, mask: str
) -> None:
    Case(shape, layout, mask).check_forward(chip)


@pytest.mark.parametrize(("shape", "layout", "mask"), CASES)
def test_forward_in_fp32(
    shape: tuple[int, int, int, int, int, int], layout: str, mask: str
) -> None:
    """Where the cube takes fp32; L1 holds a band of 128 rows of heads of 128."""
    plan = Case(shape, layout, mask, "float32").check_forward("ascend910b2")
    assert plan.tiling["s1"] <= (128 if shape[-1] == 128 else 256)


LENGTHS = st.sampled_from([1, 2, 15, 16, 17, 31, 33, 67, 127, 128, 129, 257, 1031])


@settings(max_examples=15, deadline=None)
@given(LENGTHS, LENGTHS, st.sampled_from([16, 48, 64, 128]), st.sampled_from(["", "full", "bias"]))
def test_any_lengths_in_fp32(s1: int, s2: int, d: int, mask: str) -> None:
    Case((1, 2, 1, s1, s2, d), "BNSD", mask, "float32").check_forward("ascend910b2")


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize("kv", [4, 2])
def test_heads_of_one_tensor(chip: str, kv: int) -> None:
    """Q, K and V side by side, read in place; another tensor's heads would differ."""
    x = random_array(np.random.default_rng(kv), (2, 40, 4 + 2 * kv, 32), "float16")
    attrs = {
        "head_num": 4, "kv_head_num": kv, "first_heads": (0, 4, 4 + kv), "input_layout": "BSND",
        "scale_value": 0.2,
    }  # fmt: skip
    op = "FlashAttentionScore"
    plan = check_operator(CHIPS[chip], op, op, [x] * 3, attrs, n_outputs=3, rtol=4e-3, atol=4e-3)
    assert [plan.traffic[i].unique for i in range(3)] == [2 * 40 * n * 64 for n in (4, kv, kv)]
    apart = [x[:, :, :4], x[:, :, 4 : 4 + kv], x[:, :, 4 + kv :]]
    plain = {"head_num": 4, "input_layout": "BSND", "scale_value": 0.2}
    results = [
        compute_node(
            Node("n", op, ("q", "k", "v"), ("a", "b", "c"), a), xs,
            infer_node(
                Node("n", op, ("q", "k", "v"), ("a", "b", "c"), a),
                [TensorType(i.shape, DType.FLOAT16) for i in xs], xs,
            ),
        )
        for xs, a in (([x] * 3, attrs), (apart, plain))
    ]  # fmt: skip
    np.testing.assert_array_equal(results[0][2], results[1][2])


def test_several_tasks_of_a_band_in_bf16() -> None:
    plan = Case((1, 1, 1, 1280, 1280, 128), "SBH", "causal", "bfloat16").check_forward(
        "ascend910b2"
    )
    assert plan.tiling["s2"] == 1024  # the last band has two tasks


def test_the_operator_is_attention() -> None:
    case = Case((2, 4, 2, 24, 30, 16), "BNSD")
    q, k, v = (a.astype(np.float64) for a in (case.q, case.k, case.v))
    k, v = np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1)
    scores = q @ k.swapaxes(-1, -2) / 4
    e = np.exp(scores - scores.max(-1, keepdims=True))
    top, total, y = case.forward()
    np.testing.assert_allclose(top[..., 3], scores.max(-1), rtol=1e-3)
    np.testing.assert_allclose(total[..., 0], e.sum(-1), rtol=1e-3)
    np.testing.assert_allclose(y, e @ v / e.sum(-1, keepdims=True), atol=4e-3)


def test_a_vector_core_that_does_not_wait_gets_wrong_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def early(k, src, dst, event):  # type: ignore[no-untyped-def]
        return k.stall(dst, 0) if event < 10 else await_signal(k, src, dst, event)

    monkeypatch.setattr(npusim.kernels.attention, "await_signal", early)
    with pytest.raises(AssertionError):
        Case((1, 1, 1, 64, 64, 64)).check_forward("ascend910b2")


def _launch(chip: str, s: int, causal: bool) -> float:
    """Cycles per score repeat of the busiest vector core."""
    spec = load_chip(chip)
    x, stats = OperandSpec((1, 8, s, 128), DType.FLOAT16), OperandSpec((1, 8, s, 8), DType.FLOAT32)
    attrs = {"head_num": 8, "input_layout": "BNSD", "scale_value": 0.1}
    inputs = (x, x, x)
    if causal:
        attrs["sparse_mode"], inputs = 2, (*inputs, OperandSpec((2048, 2048), DType.BOOL))
    args = KernelArgs(
        "FlashAttentionScore", inputs, (stats, stats, x), tuple(sorted(attrs.items()))
    )
    plan = choose_plan("FlashAttentionScore", args, spec)
    return time_launch(spec, "FlashAttentionScore", args, plan).cycles


def test_keys_that_no_row_sees_cost_nothing() -> None:
    whole, half = (_launch("ascend910b2", 4096, causal) for causal in (False, True))
    seen = (4096 + 256) / 2 / 4096
    assert seen < half / whole < 1.25 * seen  # masks on the diagonal, unequal loads


def test_scores_take_the_bandwidth_of_l2() -> None:
    """4.26 MB per task of 256 × 1024 scores over an L2 of 2.56 TB/s, on the 910B4."""
    chip = load_chip("ascend910b4")
    tasks = 8 * 16 * 4
    floor = tasks * 4.26e6 / chip.l2_rate
    assert 0.95 * floor < _launch("ascend910b4", 4096, False) < 1.15 * floor


def test_bands_are_dealt_by_what_they_see() -> None:
    a = Shape(1, 1, 1, 4096, 4096, 128, "BNSD", 0, "triangle")
    starts = band_starts(a, 256, 4)
    loads = [sum(i + 1 for i in range(lo, hi)) for lo, hi in pairwise(starts)]
    assert len(loads) == 4 and sum(loads) == 136 and max(loads) <= 42
    assert band_starts(Shape(1, 1, 1, 4096, 4096, 128, "BNSD", 4096, ""), 256, 3) == (0, 6, 12, 16)


@pytest.mark.parametrize(
    ("d", "dtype", "chip", "reason"),
    [
        (144, DType.FLOAT16, "ascend910b2", "heads of 144"),
        (40, DType.FLOAT16, "ascend910b2", "heads of 40"),
        (64, DType.FLOAT32, "ascend910a", "attention in float32: the cube of ascend910a"),
        (64, DType.FLOAT32, "ascend310p3", "attention in float32: the cube of ascend310p3"),
        (64, DType.BFLOAT16, "ascend910a", "attention in bfloat16"),
    ],
)
def test_what_the_kernel_refuses(d: int, dtype: DType, chip: str, reason: str) -> None:
    x, stats = OperandSpec((1, 1, 32, d), dtype), OperandSpec((1, 1, 32, 8), DType.FLOAT32)
    attrs = (("head_num", 1), ("input_layout", "BNSD"))
    args = KernelArgs("FlashAttentionScore", (x, x, x), (stats, stats, x), attrs)
    kernel = npusim.kernels.attention.FlashAttentionScore
    assert reason in kernel.refuse(args, load_chip(chip))


def test_hidden_scores_are_lowest() -> None:
    assert np.isfinite(attention_vector.HIDDEN)  # -inf less -inf would be no number
