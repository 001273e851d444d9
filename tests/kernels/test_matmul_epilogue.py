"""A product on cube cores, its activation on vector cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, execute, random_array, timed

from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel

CHIP = CHIPS["ascend910b2"]
GELU = EpilogueStep("Gelu", None, (("approximate", "none"),))
SWISH = EpilogueStep("Swish", None, (("alpha", 1.0),))
TANH = EpilogueStep("Tanh")
SHIFT = EpilogueStep("Add", None, (("const1", 0.5),))


def launch(m: int, n: int, k: int, *steps: EpilogueStep, dtype: str = "float16") -> KernelArgs:
    """A product with a bias."""
    kind = DType.of(np.dtype(dtype)) if dtype != "bfloat16" else DType.BFLOAT16
    a, b, c, y = (OperandSpec(s, kind) for s in ((m, k), (k, n), (n,), (m, n)))
    return KernelArgs("MatMul", (a, b, c), (y,), (), steps)


@settings(max_examples=25, deadline=None)
@given(
    *(st.integers(1, n) for n in (3, 300, 90, 600)), st.booleans(),
    st.sampled_from([(GELU,), (SWISH,), (TANH, SWISH)]), st.sampled_from(["float16", "bfloat16"]),
)  # fmt: skip
def test_as_the_operator(
    batch: int, m: int, k: int, n: int, bias: bool, steps: tuple[EpilogueStep, ...], dtype: str
) -> None:
    """Ragged tiles, several per core, odd rows; both engines agree (see `execute`)."""
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, s, dtype) for s in ((batch, m, k), (batch, k, n))]
    if bias:
        inputs.append(random_array(rng, (n,), dtype))
    coarse = dtype == "bfloat16"
    check_operator(
        CHIP, "MatMulEpilogue", "MatMul", inputs, {}, epilogue=steps,
        rtol=2e-2 if coarse else 3e-3, atol=0.1 if coarse else 2e-2,
    )  # fmt: skip


def test_a_constant() -> None:
    rng = np.random.default_rng(1)
    a, b = random_array(rng, (50, 40), "float16"), random_array(rng, (40, 70), "float16")
    node = Node("n", "MatMul", ("a", "b"), ("y",), {}, (TANH, SHIFT))
    kind = [TensorType((50, 70), DType.FLOAT16)]
    (got,), _ = execute(CHIP, "MatMulEpilogue", node, [a, b], kind, [Layout.ND] * 3, {})
    exact = np.tanh(a.astype(np.float32) @ b.astype(np.float32)) + 0.5
    np.testing.assert_allclose(got.astype(np.float32), exact, atol=3e-3)


def test_steps_hide_behind_the_product() -> None:
    """BERT's: little longer than the product alone, and no sum of the two."""
    args = launch(2048, 4096, 1024, GELU)
    together, plan = timed(CHIP, "MatMulEpilogue", args)
    product, _ = timed(CHIP, "MatMul", replace(args, epilogue=()))
    gelu, _ = timed(CHIP, "Elementwise", KernelArgs(
        "Gelu", (args.outputs[0],), args.outputs, (("approximate", "none"),)
    ))  # fmt: skip
    assert product.cycles < together.cycles < product.cycles + gelu.cycles / 3
    assert plan.workspace[0] == plan.block_dim * 2 * 2 * 256 * plan.tiling["m0"] * plan.tiling["n0"]


def test_two_vector_cores_as_one_that_counts_twice() -> None:
    """Alike halves are simulated once: as long as both cores in place, to a few cycles a tile."""
    args = launch(768, 1024, 256, GELU)
    plan = choose_plan("MatMulEpilogue", args, CHIP)
    kernel = get_kernel("MatMulEpilogue")
    assert [m.count for m in kernel.members(args, CHIP, plan, 0, 0, False)] == [1, 2]
    assert [m.count for m in kernel.members(args, CHIP, plan, 0, 0, True)] == [1, 1, 1]
    assert time_launch(CHIP, "MatMulEpilogue", args, plan).cycles > 0


@pytest.mark.parametrize(("chip", "args", "why"), [
    ("ascend910a", launch(64, 64, 64, GELU), "cube and vector are one core"),
    ("ascend910b2", launch(64, 64, 64), "no steps"),
    ("ascend910b2", launch(64, 64, 64, GELU, dtype="float32"), "not float32"),
    ("ascend910b2", launch(64, 64, 64, EpilogueStep("Add", 2)), "with an operand"),
    ("ascend910b2", launch(64, 64, 64, EpilogueStep("Softmax")), "epilogue Softmax"),
])  # fmt: skip
def test_what_it_refuses(chip: str, args: KernelArgs, why: str) -> None:
    assert why in get_kernel("MatMulEpilogue").refuse(args, CHIPS[chip])


def test_fractals_are_left_to_others() -> None:
    args = launch(64, 64, 64, GELU)
    nz = replace(args.outputs[0], layout=Layout.FRACTAL_NZ)
    assert "ND" in get_kernel("MatMulEpilogue").refuse(replace(args, outputs=(nz,)), CHIP)
