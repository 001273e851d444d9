"""Types that CANN's fusion names, and others that the shipped profiles do not have."""

from __future__ import annotations

import pytest

from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.explore.replay import launch_of, replay
from npusim.frontends.recorded import RecordedOp, RecordedTensor

CHIP = load_chip("ascend910-30c")


def tensor(*shape: int, dtype: str = "float16", layout: str = "ND") -> RecordedTensor:
    return RecordedTensor(layout, dtype, shape)


def op(op_type: str, *tensors: RecordedTensor, outputs: int = 1) -> RecordedOp:
    inputs, out = tensors[:-outputs], tensors[-outputs:]
    return RecordedOp("net", op_type, op_type, "AI_CORE", 30, inputs, out, 1, 1.0)


FLAT = tensor(4096, 64, dtype="float32")
SCALAR = tensor(dtype="float32")
IMAGE = tensor(8, 4, 28, 28, 16, layout="NC1HWC0")
DOUBLE = tensor(8, 4, 56, 56, 16, layout="NC1HWC0")
WEIGHTS = tensor(36, 4, 16, 16, layout="FRACTAL_Z")
BIAS = tensor(64)
A, B, C = (
    tensor(n, m, 16, 16, layout="FRACTAL_NZ") for n, m in ((8, 16), (4, 8), (4, 16))
)  # fmt: skip

ROWS = [
    op("FusionOp_Mul_Add", FLAT, SCALAR, FLAT, FLAT),
    op("FusionOp_Sub_Square_Mul", FLAT, FLAT, SCALAR, FLAT),
    op("FusionOp_Exp_Add_Log", FLAT, SCALAR, FLAT),
    op("FusionOp_Conv2D_ReLUV2", IMAGE, WEIGHTS, IMAGE),
    op("FusionOp_Conv2D_ReLU", IMAGE, WEIGHTS, BIAS, IMAGE),
    op("FusionOp_Conv2D_Add_Relu", IMAGE, WEIGHTS, BIAS, IMAGE, IMAGE),
    op("FusionOp_Conv2D_Add_Relu", IMAGE, WEIGHTS, IMAGE, IMAGE),
    op("Conv2D", IMAGE, WEIGHTS, BIAS, IMAGE),
    op("FusionOp_MatMul_Mul_Add", A, B, SCALAR, C, C),
    op("SigmoidGrad", FLAT, FLAT, FLAT),
    op("SwishGrad", FLAT, FLAT, FLAT, FLAT),
    op("LeakyReluGrad", FLAT, FLAT, FLAT),
    op("Swish", IMAGE, IMAGE),
    op("ApplyMomentum", FLAT, FLAT, SCALAR, FLAT, SCALAR, FLAT, FLAT, outputs=2),
    op("ResizeNearestNeighborV2", IMAGE, DOUBLE),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.op_type)
def test_is_timed(row: RecordedOp) -> None:
    (found,) = replay([row], CHIP).rows
    assert found.predicted_us is not None and found.predicted_us > 1, found.reason


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (op("FusionOp_Mul_Sort", FLAT, FLAT, FLAT), "'Sort' in a fused chain"),
        (op("FusionOp_Mul_Add", FLAT, FLAT, FLAT), "a chain of 3 operands"),
        (op("FusionOp_Conv2D_Add", IMAGE, WEIGHTS, IMAGE), "0 operands|2 operands for 1 steps"),
        (op("ResizeNearestNeighborV2", DOUBLE, IMAGE), "not a whole factor"),
    ],
)
def test_others_say_why(row: RecordedOp, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        launch_of(row)
