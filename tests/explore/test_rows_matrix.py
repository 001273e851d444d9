"""From recorded matrix products to launches: shapes, padding, fused operands."""

from __future__ import annotations

import pytest

from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.explore.replay import Launch, launch_of, plan_for
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import EpilogueStep, Layout
from npusim.program.kernel import Plan

CHIP = load_chip("ascend910-30c")


def nz(n1: int, m1: int, dtype: str = "float16") -> RecordedTensor:
    """A fractal matrix of M1 × N1 blocks, as profilers write its shape."""
    return RecordedTensor("FRACTAL_NZ", dtype, (n1, m1, 16, 16))


def nd(*shape: int, dtype: str = "float16") -> RecordedTensor:
    """A plain tensor."""
    return RecordedTensor("ND", dtype, shape)


def launch(kind: str, inputs: list[RecordedTensor], outputs: list[RecordedTensor]) -> Launch:
    """The launch of a recorded row."""
    return launch_of(
        RecordedOp("net", "n", kind, "AI_CORE", 30, tuple(inputs), tuple(outputs), 1, 10.0)
    )


def plan(found: Launch, blocks: int) -> Plan:
    """Its plan on the 30-core chip."""
    return plan_for(found, CHIP, blocks)


@pytest.mark.parametrize(("a", "b", "trans"), [
    ((192, 200), (48, 192), (0, 0)), ((192, 200), (192, 48), (0, 1)),
    ((200, 192), (48, 192), (1, 0)), ((200, 192), (192, 48), (1, 1)),
])  # fmt: skip
def test_transposes_are_read_off_the_shapes(
    a: tuple[int, int], b: tuple[int, int], trans: tuple[int, int]
) -> None:
    found = launch("MatMulV2", [nz(*a), nz(*b)], [nz(48, 200)])
    assert (found.args.attr("transA"), found.args.attr("transB")) == trans
    assert found.args.outputs[0].shape == (3200, 768)
    made = plan(found, 30)
    assert (made.tiling["bm"], made.tiling["bn"], made.block_dim) == (10, 3, 30)


def test_a_bias_tells_how_many_columns_are_real() -> None:
    found = launch("MatMul", [nz(48, 4), nz(48, 63), nd(1001)], [nz(63, 4)])
    assert found.args.inputs[1].shape == (1001, 768)
    assert found.args.outputs[0].shape == (64, 1001)
    assert plan(found, 28).block_dim == 28
    with pytest.raises(UnsupportedError, match="a bias of 900 for 1008 columns"):
        launch("MatMul", [nz(48, 4), nz(48, 63), nd(900)], [nz(63, 4)])


def test_a_scalar_factor_is_no_operand() -> None:
    found = launch("FusionOp_MatMul_Mul", [nz(8, 100), nz(4, 100), nd(dtype="float32")],
                   [nz(4, 8, "float32")])  # fmt: skip
    assert found.args.epilogue == (EpilogueStep("Mul", None, (("const1", 1.0),)),)
    assert len(found.args.inputs) == 3


def test_a_tensor_factor_leaves_two_outputs() -> None:
    w = nz(192, 48, "float32")
    found = launch("FusionOp_MatMul_Mul", [nz(48, 200), nz(192, 200), w], [w, w])
    assert found.args.epilogue == (EpilogueStep("Mul", 3),)
    made = plan(found, 32)
    assert made.block_dim == 32
    assert made.traffic[4] == made.traffic[5]
    assert made.traffic[3].total == made.traffic[4].total == 768 * 3072 * 4


@pytest.mark.parametrize(("kind", "extra", "outputs", "steps"), [
    ("ReLU", [nd(768)], 1, ["Relu"]), ("Tanh", [nd(768)], 1, ["Tanh"]),
    ("GeLU", [nd(768)], 2, ["Gelu"]), ("AddN", [nz(48, 40)] * 3, 1, ["Add"] * 3),
    ("GeLUGrad", [nz(48, 40)] * 2, 1, ["GeluGrad"]),
])  # fmt: skip
def test_fused_steps(
    kind: str, extra: list[RecordedTensor], outputs: int, steps: list[str]
) -> None:
    inputs = [nz(16, 40), nz(48, 16), *extra]
    found = launch(f"FusionOp_MatMul_{kind}", inputs, [nz(48, 40)] * outputs)
    assert [s.op_type for s in found.args.epilogue] == steps
    assert len(found.args.outputs) == outputs
    assert plan(found, 30).block_dim == 30


def test_batches_are_dealt_before_rows() -> None:
    heads = RecordedTensor("FRACTAL_NZ", "float16", (64, 12, 4, 4, 16, 16))
    found = launch("BatchMatMul", [heads, heads], [heads])
    made = plan(found, 30)
    assert (made.tiling["bb"], made.block_dim) == (30, 30)
    assert [n for _, n in made.classes] == [29, 1]


def test_plain_operands_on_the_second_generation() -> None:
    found = launch("MatMulV3", [nd(4096, 2048), nd(1024, 2048)], [nd(4096, 1024)])
    assert found.args.attr("transB") == 1
    assert found.args.inputs[0].layout is Layout.ND
    assert plan_for(found, load_chip("ascend910b4"), 20).block_dim == 20


def test_what_is_no_product() -> None:
    with pytest.raises(UnsupportedError, match="a vector operand"):
        launch("MatMul", [nd(16), nd(16)], [nd(16)])
    with pytest.raises(UnsupportedError, match="no product of"):
        launch("MatMul", [nz(3, 5), nz(7, 9)], [nz(3, 3)])
