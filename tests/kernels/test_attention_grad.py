"""The gradient of fused attention at tile level against the operator, and that against slopes."""

from __future__ import annotations

import numpy as np
import pytest
from attending import SMALL, Case
from launching import CHIPS

import npusim.kernels.attention_grad
from npusim.ir import DType, Node, TensorType
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec

CASES = [
    ((1, 1, 1, 16, 16, 16), "SBH", ""),
    ((1, 2, 1, 300, 200, 64), "BSH", ""),
    ((1, 2, 2, 301, 301, 128), "SBH", "causal"),
    ((2, 1, 1, 70, 140, 32), "SBH", "random"),
    ((1, 4, 2, 130, 130, 64), "BNSD", "full"),
    ((1, 1, 1, 90, 613, 64), "BSND", "corner"),
]


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2", *SMALL])
@pytest.mark.parametrize(("shape", "layout", "mask"), CASES)
def test_grad(
    chip: str, shape: tuple[int, int, int, int, int, int], layout: str, mask: str
) -> None:
    Case(shape, layout, mask).check_grad(chip)


def test_blocks_of_512_in_bf16() -> None:
    case = Case((1, 1, 1, 640, 640, 128), "SBH", "causal", "bfloat16")
    assert case.check_grad("ascend910b2").block_dim == 3  # one of four is hidden


def test_the_operator_is_the_slope_of_attention() -> None:
    rng = np.random.default_rng(3)
    q, dy = rng.standard_normal((2, 1, 4, 9, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, 2, 11, 16)).astype(np.float32)
    attrs = {"head_num": 4, "input_layout": "BNSD", "scale_value": 0.3}

    def run(op: str, inputs: list[np.ndarray | None], n: int) -> list[np.ndarray]:
        names = tuple("" if a is None else f"x{i}" for i, a in enumerate(inputs))
        node = Node("n", op, names, tuple(f"y{i}" for i in range(n)), attrs)
        kinds = [None if a is None else TensorType(a.shape, DType.FLOAT32) for a in inputs]
        return compute_node(node, inputs, infer_node(node, kinds, inputs))

    def loss(*x: np.ndarray) -> float:
        return float((run("FlashAttentionScore", list(x), 3)[2].astype(np.float64) * dy).sum())

    top, total, y = run("FlashAttentionScore", [q, k, v], 3)
    grads = run("FlashAttentionScoreGrad", [q, k, v, dy, None, top, total, y], 3)
    for i, grad in enumerate(grads):
        direction = rng.standard_normal(grad.shape).astype(np.float32)
        step = 1e-2
        ends = []
        for sign in (1, -1):
            moved = [q, k, v]
            moved[i] = moved[i] + sign * step * direction
            ends.append(loss(*moved))
        slope = (ends[0] - ends[1]) / (2 * step)
        assert slope == pytest.approx(float((grad * direction).sum()), rel=2e-3, abs=2e-2)


def test_it_needs_what_the_forward_kept() -> None:
    x = OperandSpec((1, 1, 32, 64), DType.FLOAT16)
    attrs = (("head_num", 1), ("input_layout", "BNSD"))
    args = KernelArgs("FlashAttentionScoreGrad", (x, x, x, x), (x, x, x), attrs)
    kernel = npusim.kernels.attention_grad.FlashAttentionScoreGrad
    assert "softmax_max" in kernel.refuse(args, CHIPS["ascend910b2"])
