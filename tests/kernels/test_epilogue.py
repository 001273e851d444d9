"""What is fused behind a cube result: bias, residuals, activations, constants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, execute, random_array

from npusim.chip import load_chip
from npusim.errors import KernelError
from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType
from npusim.kernels.epilogue import refuse_epilogue
from npusim.kernels.lang import Kernel
from npusim.kernels.matmul import MatMul
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan
from npusim.program.region import Region

F16, F32 = DType.FLOAT16, DType.FLOAT32
ND, NZ, NC, FZ = Layout.ND, Layout.FRACTAL_NZ, Layout.NC1HWC0, Layout.FRACTAL_Z
RELU = EpilogueStep("Relu")
TOL = {"rtol": 3e-3, "atol": 2e-2}


def constant(op: str, value: float) -> EpilogueStep:
    """A step with a constant operand."""
    return EpilogueStep(op, None, (("const1", value),))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a"]), *(st.integers(1, n) for n in (80, 60, 80)),
    st.booleans(), st.sampled_from(["Add", "Sum", "Max", "Min"]), st.booleans(),
    st.sampled_from([ND, NZ]),
)  # fmt: skip
def test_matmul_with_a_residual(
    chip: str, m: int, k: int, n: int, bias: bool, op: str, relu: bool, layout: Layout
) -> None:
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, s, "float16") for s in ((m, k), (k, n))]
    layouts = [ND, ND]
    layout = ND if bias and m % 16 else layout
    if bias:
        inputs.append(random_array(rng, (n,), "float16"))
        layouts.append(ND)
    inputs.append(random_array(rng, (m, n), "float16"))
    steps = (EpilogueStep(op, len(inputs) - 1), *((RELU,) if relu else ()))
    check_operator(
        CHIPS[chip],
        "MatMul",
        "Gemm",
        inputs,
        {},
        layouts=[*layouts, layout, layout],
        epilogue=steps,
        **TOL,
    )


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize("steps", [
    (EpilogueStep("Add", 3), RELU), (RELU, EpilogueStep("Add", 3)),
    (EpilogueStep("Add", 3), EpilogueStep("Max", 4)),
])  # fmt: skip
def test_convolution_with_residuals(chip: str, steps: tuple[EpilogueStep, ...]) -> None:
    rng = np.random.default_rng(1)
    shapes = [(2, 24, 9, 10), (40, 24, 3, 3), (40,), (2, 40, 9, 10), (2, 40, 9, 10)]
    used = 3 + sum(s.operand is not None for s in steps)
    inputs = [random_array(rng, s, "float16") for s in shapes[:used]]
    layouts = [NC, FZ, ND, NC, NC][:used]
    check_operator(
        CHIPS[chip],
        "Conv2D",
        "Conv",
        inputs,
        {"pads": (1,) * 4},
        layouts=[*layouts, NC],
        epilogue=steps,
        rtol=4e-3,
        atol=6e-2,
    )


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize(("op", "value", "want"), [
    ("Add", 0.5, lambda y: y + 0.5), ("Sum", -1.0, lambda y: y - 1.0),
    ("Max", 0.25, lambda y: np.maximum(y, 0.25)), ("Min", -0.5, lambda y: np.minimum(y, -0.5)),
])  # fmt: skip
def test_constants(chip: str, op: str, value: float, want: object) -> None:
    rng = np.random.default_rng(2)
    a, b = random_array(rng, (50, 40), "float16"), random_array(rng, (40, 70), "float16")
    node = Node("n", "MatMul", ("a", "b"), ("y",), {}, (constant(op, value),))
    got, _ = execute(CHIPS[chip], "MatMul", node, [a, b], [TensorType((50, 70), F16)], [ND] * 3, {})
    exact = want(a.astype(np.float32) @ b.astype(np.float32))  # type: ignore[operator]
    np.testing.assert_allclose(got[0].astype(np.float32), exact, **TOL)


def test_clip_behind_a_convolution() -> None:
    """Relu6 as the compiler fuses it: Max with 0, Min with 6, on ragged channels."""
    rng = np.random.default_rng(3)
    x, w = random_array(rng, (1, 20, 8, 8), "float16"), random_array(rng, (20, 20, 3, 3), "float16")
    node = Node("n", "Conv", ("x", "w"), ("y",), {}, (constant("Max", 0.0), constant("Min", 6.0)))
    plain = Node("n", "Conv", ("x", "w"), ("y",))
    kind, layouts = [TensorType((1, 20, 6, 6), F16)], [NC, FZ, NC]
    chip = CHIPS["toy"]
    (got,), _ = execute(chip, "Conv2D", node, [x, w], kind, layouts, {})
    (full,), _ = execute(chip, "Conv2D", plain, [x, w], kind, layouts, {})
    np.testing.assert_array_equal(got, np.clip(full, 0, 6))
    assert (got == 6).any()
    assert (got == 0).any()


def test_fp32_results_and_bias_of_fp16_operands() -> None:
    rng = np.random.default_rng(4)
    a, b = random_array(rng, (33, 64), "float16"), random_array(rng, (64, 47), "float16")
    bias = random_array(rng, (47,), "float32")
    node = Node("n", "Gemm", ("a", "b", "c"), ("y",))
    for chip in CHIPS.values():
        kind = [TensorType((33, 47), F32)]
        (got,), _ = execute(chip, "MatMul", node, [a, b, bias], kind, [ND] * 4, {})
        want = a.astype(np.float32) @ b.astype(np.float32) + bias
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def args_with(step: EpilogueStep, other: OperandSpec | None = None) -> KernelArgs:
    """A 20 × 20 product with one step behind it."""
    x = OperandSpec((20, 20), F16)
    return KernelArgs("MatMul", (x, x, None, other), (x,), (), (step,))


def test_refusals() -> None:
    first, second = CHIPS["ascend910a"], CHIPS["ascend910b2"]
    same = OperandSpec((20, 20), F16)
    add = EpilogueStep("Add", 3)
    assert refuse_epilogue(args_with(RELU), second) == ""
    assert refuse_epilogue(args_with(add, same), first) == ""
    assert "Add is not one of Relu" in refuse_epilogue(args_with(add, same), second)
    assert "Tanh" in refuse_epilogue(args_with(EpilogueStep("Tanh")), first)
    assert "without an operand" in refuse_epilogue(args_with(EpilogueStep("Add")), first)
    row = OperandSpec((20,), F16)
    assert "broadcasts" in refuse_epilogue(args_with(add, row), first)
    blocked = OperandSpec((20, 20), F16, NZ)
    assert "layouts" in refuse_epilogue(args_with(add, blocked), first)


def test_a_smaller_ub_takes_smaller_tiles() -> None:
    """Strips follow UB: where one column block of a tall tile does not fit, the tile shrinks."""
    x = OperandSpec((512, 512), F32)
    h = OperandSpec((512, 512), F16)
    args = KernelArgs("MatMul", (h, h, None, x), (x,), (), (EpilogueStep("Add", 3),))
    small = load_chip("ascend910a", ["core.ub.size=16KiB"])
    tallest = [max(t["m0"] for t in MatMul.tilings(args, c)) for c in (CHIPS["ascend910a"], small)]
    assert tallest == [16, 2]
    assert choose_plan("MatMul", args, small).tiling["m0"] <= 2


def test_each_generation_has_its_own_way_out_of_l0c() -> None:
    l0c = Region.dense("L0C", -1, 0, (1, 16, 16), F32.np)
    x = OperandSpec((16, 16), F32)
    args = KernelArgs("MatMul", (x, x), (x,))
    with pytest.raises(KernelError, match="fixpipe"):
        k = Kernel(CHIPS["ascend910a"], args, 0, False)
        k.fixpipe([(k.output(0), l0c)], 1)
    with pytest.raises(KernelError, match="use fixpipe"):
        k = Kernel(CHIPS["ascend910b2"], args, 0, False)
        k.l0c_to_ub(Region.dense("UB", -1, 0, (1, 16, 16), F32.np), l0c)
