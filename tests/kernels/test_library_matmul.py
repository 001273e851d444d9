"""The library's matrix product at tile level against the operators, and how it cuts its work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, execute, random_array

from npusim.chip import load_chip
from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType
from npusim.kernels.library_epilogue import refuse_library_epilogue
from npusim.kernels.library_matmul import LibraryMatMul
from npusim.kernels.library_tiling import split, tile_side
from npusim.machine.launch import time_launch
from npusim.ops import compute_node
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan

F16, F32 = DType.FLOAT16, DType.FLOAT32
ND, NZ = Layout.ND, Layout.FRACTAL_NZ
TOL = {"rtol": 4e-3, "atol": 2e-2}
FIRST = st.sampled_from(["toy", "ascend910a"])
GELU = EpilogueStep("Gelu", None, (("approximate", "tanh"),))


def scale(value: float) -> EpilogueStep:
    """Multiplication by a scalar."""
    return EpilogueStep("Mul", None, (("const1", value),))


@settings(max_examples=40, deadline=None)
@given(
    FIRST, *(st.integers(1, top) for top in (9, 12, 9)), st.booleans(), st.booleans(),
    st.booleans(), st.sampled_from([(), (EpilogueStep("Relu"),), (scale(0.5),), (GELU,)]),
)  # fmt: skip
def test_products(
    chip: str, m1: int, k1: int, n1: int, ta: bool, tb: bool, bias: bool,
    steps: tuple[EpilogueStep, ...],
) -> None:  # fmt: skip
    rng = np.random.default_rng(0)
    m, k, n = m1 * 16, k1 * 16, n1 * 16 - 5
    shapes = [(k, m) if ta else (m, k), (n, k) if tb else (k, n), *([(n,)] if bias else [])]
    inputs = [random_array(rng, s, "float16") for s in shapes]
    if any(s.op_type == "Mul" for s in steps):
        node = Node("n", "Gemm", ("a", "b", "c")[: len(inputs)], ("y",),
                    {"transA": int(ta), "transB": int(tb)}, steps)  # fmt: skip
        plain = node.with_(epilogue=())
        kind = [TensorType((m, n), F16)]
        layouts = [NZ, NZ, *([ND] if bias else []), NZ]
        attrs = dict(node.attrs)
        (got,), _ = execute(CHIPS[chip], "LibraryMatMul", node, inputs, kind, layouts, attrs)
        (full,) = compute_node(plain, inputs, kind)
        np.testing.assert_allclose(got, full.astype(np.float32) * 0.5, **TOL)
    else:
        layouts = [NZ, NZ, *([ND] if bias else []), NZ]
        check_operator(
            CHIPS[chip],
            "LibraryMatMul",
            "Gemm",
            inputs,
            {"transA": int(ta), "transB": int(tb)},
            layouts=layouts,
            epilogue=steps,
            **TOL,
        )


@settings(max_examples=15, deadline=None)
@given(FIRST, st.integers(2, 40), *(st.integers(1, 40) for _ in range(3)))
def test_batches(chip: str, batch: int, m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(1)
    inputs = [random_array(rng, s, "float16") for s in ((batch, m, k), (batch, k, n))]
    check_operator(CHIPS[chip], "LibraryMatMul", "MatMul", inputs, {}, layout=NZ, **TOL)


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
def test_further_tensors(chip: str) -> None:
    """AddN behind a product: every step rounds to the stored type."""
    rng = np.random.default_rng(2)
    shapes = [(64, 96), (96, 80), (80,), (64, 80), (64, 80)]
    inputs = [random_array(rng, s, "float16") for s in shapes]
    steps = (EpilogueStep("Add", 3), EpilogueStep("Add", 4))
    check_operator(
        CHIPS[chip],
        "LibraryMatMul",
        "Gemm",
        inputs,
        {},
        layouts=[NZ, NZ, ND, NZ, NZ, NZ],
        epilogue=steps,
        **TOL,
    )


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_the_product_is_kept_beside_the_result(chip: str, kind: str) -> None:
    """A gradient and the gradient times a tensor (fp32), or a product and its GeLU (fp16)."""
    rng = np.random.default_rng(3)
    a, b = random_array(rng, (48, 160), "float16"), random_array(rng, (160, 64), "float16")
    other = random_array(rng, (48, 64), "float32")
    wide = kind == "float32"
    step = EpilogueStep("Mul", 3) if wide else GELU
    inputs = [a, b, None, other] if wide else [a, b, None]
    node = Node("n", "Gemm", ("a", "b", "", "w")[: len(inputs)], ("y", "z"), {}, (step,))
    types = [TensorType((48, 64), DType.of(kind))] * 2
    layouts = [NZ] * (len(inputs) + 2)
    (kept, got), plan = execute(CHIPS[chip], "LibraryMatMul", node, inputs, types, layouts, {})
    product = a.astype(np.float32) @ b.astype(np.float32)
    one = node.with_(epilogue=(step,), outputs=("z",))
    (want,) = compute_node(one, inputs, types[:1])
    np.testing.assert_allclose(kept.astype(np.float32), product, **TOL)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), **TOL)
    first = len(inputs)
    assert plan.traffic[first] == plan.traffic[first + 1]


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
@pytest.mark.parametrize("n", [64, 88])
@pytest.mark.parametrize("lead", [(3, 1), (3, 2), (1, 1)])
def test_a_mask_row(chip: str, n: int, lead: tuple[int, int]) -> None:
    """Attention scores of 3 × 2 heads: a row of the mask for each sentence, head, or all."""
    rng = np.random.default_rng(5)
    shapes = [(3, 2, 48, 32), (3, 2, 32, n), (*lead, 1, n)]
    a, b, mask = (random_array(rng, s, "float16") for s in shapes)
    node = Node("n", "MatMul", ("a", "b", "", "m"), ("y",), {},
                (scale(0.5), EpilogueStep("Add", 3)))  # fmt: skip
    kind = [TensorType((3, 2, 48, n), F16)]
    layouts = [NZ, NZ, ND, ND, NZ]
    inputs = [a, b, None, mask]
    (got,), plan = execute(CHIPS[chip], "LibraryMatMul", node, inputs, kind, layouts, {})
    want = (a.astype(np.float32) @ b.astype(np.float32)) * 0.5 + mask.astype(np.float32)
    np.testing.assert_allclose(got.astype(np.float32), want, **TOL)
    assert plan.traffic[3].unique == mask.nbytes


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
def test_the_gradient_of_a_gelu(chip: str) -> None:
    """dY = A·B is the running value, x the step's operand."""
    rng = np.random.default_rng(4)
    inputs = [random_array(rng, s, "float16") for s in ((32, 48), (48, 64), (32, 64))]
    step = EpilogueStep("GeluGrad", 3)
    inputs.insert(2, None)
    check_operator(
        CHIPS[chip], "LibraryMatMul", "Gemm", inputs, {}, layout=NZ, epilogue=(step,), **TOL
    )


@pytest.mark.parametrize(("m1", "n1", "blocks", "want"), [
    (1000, 64, 25, (25, 1)), (200, 48, 30, (10, 3)), (196, 48, 28, (14, 2)),
    (48, 192, 32, (4, 8)), (192, 48, 32, (8, 4)), (48, 48, 32, (4, 8)), (195, 64, 30, (15, 2)),
    (1000, 195, 30, (10, 3)),
])  # fmt: skip
def test_exact_splits(m1: int, n1: int, blocks: int, want: tuple[int, int]) -> None:
    assert split(m1, n1, blocks) == want


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 32))
def test_every_block_has_work(m1: int, n1: int, blocks: int) -> None:
    bm, bn = split(m1, n1, blocks)
    assert bm * bn <= blocks
    assert (bm - 1) * -(-m1 // bm) < m1
    assert (bn - 1) * -(-n1 // bn) < n1


def test_tile_sides() -> None:
    sides = {40: 8, 20: 4, 24: 8, 14: 14, 13: 13, 65: 13, 6: 6, 3: 3, 1: 1}
    assert {n: tile_side(n) for n in sides} == sides
    assert [tile_side(40, most) for most in (8, 7, 4, 3, 2, 1)] == [8, 4, 4, 2, 2, 1]


def product(m: int, k: int, n: int) -> KernelArgs:
    """A plain fp16 product of fractal operands."""
    a, b, c = (OperandSpec(s, F16, NZ) for s in ((m, k), (k, n), (m, n)))
    return KernelArgs("MatMul", (a, b), (c,))


def test_pipes_of_the_library_overlap_less() -> None:
    """Slower than npusim's own kernel, never faster than the cube."""
    chip = load_chip("ascend910-30c")
    args = product(3200, 3072, 768)
    times = {}
    for name in ("MatMul", "LibraryMatMul"):
        plan = choose_plan(name, args, chip)
        times[name] = time_launch(chip, name, args, plan).cycles
    assert times["LibraryMatMul"] > times["MatMul"] > 200 * 48 * 192 / 30


def test_refusals() -> None:
    x = OperandSpec((32, 32), F16, NZ)
    y = OperandSpec((32, 32), F32, NZ)
    chip = CHIPS["ascend910a"]

    def why(*steps: EpilogueStep, outputs: tuple[OperandSpec, ...] = (x,)) -> str:
        return LibraryMatMul.refuse(KernelArgs("MatMul", (x, x, None, y), outputs, (), steps), chip)

    assert why() == why(GELU) == why(GELU, outputs=(x, x)) == ""
    assert "Erf" in why(EpilogueStep("Erf"))
    assert "without an operand" in why(EpilogueStep("Mul"))
    assert "unlike the result" in why(EpilogueStep("Mul", 3))
    ragged, row = OperandSpec((30, 32), F16, NZ), OperandSpec((1, 32), F16)
    args = KernelArgs("MatMul", (ragged, x, None, row), (ragged,), (), (EpilogueStep("Add", 3),))
    assert "unlike the result" in LibraryMatMul.refuse(args, chip)  # padding rows stay zero
    assert "without a step" in why(outputs=(x, x))
    assert "the product and" in why(GELU, outputs=(x, y))
    both = KernelArgs("MatMul", (x, x), (x, x), (), (EpilogueStep("Relu"),))
    assert "FIXP" in LibraryMatMul.refuse(both, CHIPS["ascend910b2"])
    assert refuse_library_epilogue(product(16, 16, 16), chip) == ""
