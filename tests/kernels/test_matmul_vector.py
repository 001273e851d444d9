"""fp32 matrix products on the vector unit against the operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, execute, random_array, timed

import npusim.kernels.matmul_vector  # noqa: F401
from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType
from npusim.kernels import vector_macs as vm
from npusim.machine.launch import time_launch
from npusim.program import cost
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, get_kernel
from npusim.program.region import Region

CHIP_NAMES = st.sampled_from(["toy", "ascend910a", "ascend910b2"])
RELU = (EpilogueStep("Relu"),)


def check(
    chip: str,
    op: str,
    shapes: list[tuple[int, ...]],
    attrs: dict[str, Any] | None = None,
    epilogue: tuple[EpilogueStep, ...] = (),
    absent_bias: bool = False,
) -> Plan:
    rng = np.random.default_rng(0)
    inputs: list[np.ndarray | None] = [random_array(rng, s, "float32") for s in shapes]
    if absent_bias:
        inputs.insert(2, None)
    return check_operator(
        CHIPS[chip],
        "MatMulVector",
        op,
        inputs,
        attrs or {},
        epilogue=epilogue,
        rtol=1e-5,
        atol=1e-4,
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_gemm(data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(1, top)) for top in (90, 150, 150))
    ta, tb = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
    shapes: list[tuple[int, ...]] = [(k, m) if ta else (m, k), (n, k) if tb else (k, n)]
    bias, residual = data.draw(st.booleans()), data.draw(st.booleans())
    epilogue = data.draw(st.sampled_from([(), RELU]))
    if bias:
        shapes.append(data.draw(st.sampled_from([(n,), (1, n)])))
    if residual:
        shapes.append((m, n))
        epilogue = (EpilogueStep(data.draw(st.sampled_from(["Add", "Min"])), 3), *epilogue)
    attrs = {"alpha": 1.0, "beta": 1.0, "transA": ta, "transB": tb}
    check(data.draw(CHIP_NAMES), "Gemm", shapes, attrs, epilogue, residual and not bias)


@settings(max_examples=15, deadline=None)
@given(
    CHIP_NAMES,
    st.integers(1, 5),
    *(st.integers(1, 40) for _ in range(3)),
    st.sampled_from(["both", "a", "b", "row", "column"]),
)
def test_batches(chip: str, batch: int, m: int, k: int, n: int, which: str) -> None:
    a, b = (batch, 2, m, k), (batch, 2, k, n)
    shapes = {
        "both": (a, b),
        "a": (a, (k, n)),
        "b": ((1, m, k), b),
        "row": ((k,), (k, n)),
        "column": (a, (k,)),
    }
    check(chip, "MatMul", list(shapes[which]))


@pytest.mark.parametrize("shape", [(1, 2048, 300, 1), (300, 64, 700, 0), (33, 1000, 1, 0)])
def test_large(shape: tuple[int, int, int, int]) -> None:
    m, k, n, tb = shape
    attrs = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": tb}
    check("ascend910a", "Gemm", [(m, k), (n, k) if tb else (k, n), (n,)], attrs)


@settings(max_examples=60, deadline=None)
@given(*(st.integers(1, top) for top in (16, 300, 600)))
def test_instructions_are_those_that_the_regions_need(ways: int, m: int, n: int) -> None:
    chip = CHIPS["ascend910a"]
    shape = (ways, m, n)
    c = Region.dense("UB", -1, 0, (ways, m, n + 8), vm.F32)[:, :, :n]
    a = Region.dense("UB", -1, 0, (m, ways + 1, 8), vm.F32)[:, :ways, 0].permute(1, 0)
    b = Region.dense("UB", -1, 0, (ways, n + 8), vm.F32)[:, :n]
    walked = (c, a.expand(2).broadcast(shape), b.expand(1).broadcast(shape))
    repeats, count = cost.vector_repeats(chip, 32, *walked)
    cycles = cost.vector_cycles(chip, "mla", 32, repeats, count)
    assert vm.macs_cost(chip, shape, ways) == (cycles, count)


def test_constant_steps() -> None:
    rng = np.random.default_rng(0)
    a, b = random_array(rng, (9, 20), "float32"), random_array(rng, (20, 70), "float32")
    steps = tuple(
        EpilogueStep(op, None, (("const1", v),)) for op, v in (("Add", 1.0), ("Min", 3), ("Max", 0))
    )
    node = Node("n", "MatMul", ("a", "b"), ("y",), {}, steps)
    types = [TensorType((9, 70), DType.FLOAT32)]
    got, _ = execute(CHIPS["toy"], "MatMulVector", node, [a, b], types, [Layout.ND] * 3, {})
    np.testing.assert_allclose(got[0], np.clip(a @ b + 1, 0, 3), rtol=1e-5, atol=1e-5)


def gemm(m: int, k: int, n: int) -> KernelArgs:
    a, b, c = (OperandSpec(s, DType.FLOAT32) for s in ((m, k), (k, n), (m, n)))
    return KernelArgs("MatMul", (a, b), (c,))


@pytest.mark.parametrize("size", [(512, 512, 512), (100, 3000, 70), (1, 4096, 1000)])
def test_engines_agree_below_the_peak(size: tuple[int, int, int]) -> None:
    chip, args = CHIPS["ascend910a"], gemm(*size)
    result, plan = timed(chip, "MatMulVector", args)
    assert len(plan.classes) <= 4
    for engine in ("fast", "simpy"):
        again = time_launch(chip, "MatMulVector", args, plan, engine=engine, fold=False)
        assert again.cycles == result.cycles
    peak = chip.core.vector.lanes["float32"] * chip.vector_cores()
    macs = size[0] * size[1] * size[2]
    assert result.cycles > macs / peak
    if size[0] == 512:
        assert result.cycles < 1.3 * macs / peak  # large products keep the lanes busy


def test_refusals() -> None:
    kernel, chip = get_kernel("MatMulVector"), CHIPS["ascend910a"]

    def reason(*shapes: tuple[int, ...], dtype: DType = DType.FLOAT32, **attrs: Any) -> str:
        specs = [OperandSpec(s, dtype) for s in shapes]
        given = tuple(sorted(attrs.items()))
        return kernel.refuse(KernelArgs("Gemm", tuple(specs[:-1]), (specs[-1],), given), chip)

    assert "float16" in reason((4, 4), (4, 4), (4, 4), dtype=DType.FLOAT16)
    assert "alpha" in reason((4, 4), (4, 4), (4, 4), alpha=2.0)
    assert "per column" in reason((4, 4), (4, 4), (4, 1), (4, 4))
    assert "more than one way" in reason((2, 1, 4, 4), (1, 2, 4, 4), (2, 2, 4, 4))
    nz = OperandSpec((16, 16), DType.FLOAT32, Layout.FRACTAL_NZ)
    nd = OperandSpec((16, 16), DType.FLOAT32)
    assert "ND" in kernel.refuse(KernelArgs("MatMul", (nd, nz), (nd,)), chip)
