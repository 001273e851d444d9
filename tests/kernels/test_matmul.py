"""MatMul on the cube at tile level against the operators; what its tilings and plans promise.

Tolerance: the cube multiplies exactly and adds in fp32, in another order than numpy; results
differ by the rounding of the stored type (half an ulp each way) where the sums differ.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

from npusim.ir import DType, EpilogueStep, Layout
from npusim.kernels.lang import Kernel
from npusim.kernels.matmul import MatMul
from npusim.machine.launch import time_launch
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan

ND, NZ = Layout.ND, Layout.FRACTAL_NZ
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5}
LAYOUTS = st.sampled_from([ND, NZ])
TARGETS = st.sampled_from(
    [("toy", "float16"), ("ascend910a", "float16"), ("ascend910b2", "float16"),
     ("ascend910b2", "bfloat16"), ("ascend910b2", "float32")]
)  # fmt: skip


def check(
    target: tuple[str, str], op: str, shapes: list[tuple[int, ...] | None], layouts: list[Layout],
    attrs: dict[str, Any] | None = None, epilogue: tuple[EpilogueStep, ...] = (), seed: int = 0,
) -> Plan:  # fmt: skip
    """Tile level against numpy, both engines alike, bytes as planned."""
    chip, dtype = target
    rng = np.random.default_rng(seed)
    inputs = [None if s is None else random_array(rng, s, dtype) for s in shapes]
    depth = shapes[0][-1] if shapes[0] else 1
    return check_operator(
        CHIPS[chip],
        "MatMul",
        op,
        inputs,
        attrs or {},
        layouts=layouts,
        epilogue=epilogue,
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype] * max(1.0, depth**0.5 / 4),
    )


@settings(max_examples=60, deadline=None)
@given(
    TARGETS, *(st.integers(1, top) for top in (100, 130, 100)), st.booleans(), st.booleans(),
    st.tuples(LAYOUTS, LAYOUTS, LAYOUTS), st.booleans(), st.booleans(),
)  # fmt: skip
def test_gemm(
    target: tuple[str, str], m: int, k: int, n: int, ta: bool, tb: bool,
    layouts: tuple[Layout, ...], bias: bool, relu: bool,
) -> None:  # fmt: skip
    shapes: list[tuple[int, ...] | None] = [(k, m) if ta else (m, k), (n, k) if tb else (k, n)]
    a, b, c = layouts
    lays = [a, b]
    if bias:
        shapes.append((n,))
        lays.append(ND)
        c = c if m % 16 == 0 else ND  # a bias would fill the padding rows
    attrs = {"transA": int(ta), "transB": int(tb)}
    steps = (EpilogueStep("Relu"),) if relu else ()
    check(target, "Gemm", shapes, [*lays, c], attrs, steps)


@settings(max_examples=30, deadline=None)
@given(
    TARGETS, st.integers(1, 7), *(st.integers(1, 50) for _ in range(3)),
    st.sampled_from(["both", "a", "b"]), st.tuples(LAYOUTS, LAYOUTS, LAYOUTS),
)  # fmt: skip
def test_batches(
    target: tuple[str, str], batch: int, m: int, k: int, n: int, which: str,
    layouts: tuple[Layout, ...],
) -> None:  # fmt: skip
    a, b = (batch, 2, m, k), (batch, 2, k, n)
    shapes = {"both": [a, b], "a": [a, (k, n)], "b": [(m, k), b]}[which]
    check(target, "MatMul", list(shapes), list(layouts))


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (1, 700, 33), (300, 16, 300), (257, 129, 65), (16, 2000, 16)]
)
@pytest.mark.parametrize("target", [("toy", "float16"), ("ascend910a", "float16"),
                                    ("ascend910b2", "float32")])  # fmt: skip
@pytest.mark.parametrize("layout", [ND, NZ])
def test_shapes_at_the_edges(
    target: tuple[str, str], m: int, k: int, n: int, layout: Layout
) -> None:
    check(target, "MatMul", [(m, k), (k, n)], [layout] * 3)


def test_vectors_and_a_row_of_batches() -> None:
    check(("toy", "float16"), "MatMul", [(40,), (40, 30)], [ND] * 3)
    check(("ascend910a", "float16"), "MatMul", [(3, 5, 40), (40, 30)], [ND, NZ, ND])


@pytest.mark.parametrize("layouts", [(ND, ND, NZ), (NZ, ND, ND), (NZ, NZ, NZ)])
def test_a_shared_operand_of_ragged_batches(layouts: tuple[Layout, ...]) -> None:
    """Batches are more rows in ND only: in FRACTAL_NZ each is padded by itself."""
    check(("toy", "float16"), "MatMul", [(3, 5, 40), (40, 30)], list(layouts))
    check(("toy", "float16"), "MatMul", [(5, 40), (3, 40, 30)], list(layouts))


@pytest.mark.parametrize("resident", [0, 1, 2])
@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
def test_every_loop_nest_moves_what_it_plans(chip: str, resident: int) -> None:
    """Time any tiling of each kind: conservation is checked, and larger than no cube work."""
    spec = CHIPS[chip]
    a, b, c = (OperandSpec(s, DType.FLOAT16) for s in ((150, 500), (500, 300), (150, 300)))
    args = KernelArgs("MatMul", (a, b), (c,))
    kinds = [t for t in MatMul.tilings(args, spec) if t["resident"] == resident]
    assert kinds
    for tiling in kinds[:: max(1, len(kinds) // 4)]:
        plan = MatMul.plan(args, spec, tiling)
        result = time_launch(spec, "MatMul", args, plan)
        assert result.cycles > 10 * 32 * 19 / plan.block_dim
        total = {i: t.total for i, t in plan.traffic.items()}
        assert total[0] >= a.nbytes
        assert total[1] >= b.nbytes
        assert total[2] == c.nbytes


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(CHIPS)), st.integers(1, 5), *(st.integers(1, 3000) for _ in range(3)),
    LAYOUTS,
)  # fmt: skip
@example("toy", 1, 545, 1, 545, ND)  # shares of 18 blocks, of which L0A holds 4
def test_every_tiling_fits_the_buffers_and_covers_the_work(
    chip: str, batch: int, m: int, k: int, n: int, layout: Layout
) -> None:
    """Building the body allocates every buffer: one byte too many would be an error."""
    spec = CHIPS[chip]
    a, b, c = (
        OperandSpec(s, DType.FLOAT16, layout) for s in ((batch, m, k), (batch, k, n), (batch, m, n))
    )
    args = KernelArgs("MatMul", (a, b), (c,))
    tilings = list(MatMul.tilings(args, spec))
    assert tilings
    for tiling in tilings:
        core = Kernel(spec, args, 0, False)
        next(MatMul.body(core, args, tiling, 0))
        plan = MatMul.plan(args, spec, tiling)
        assert plan.block_dim <= spec.cores.count
        assert sum(count for _, count in plan.classes) == plan.block_dim
        assert plan.traffic[2].total == c.nbytes


@pytest.mark.parametrize("size", [(512, 512, 512), (128, 768, 3072), (1024, 64, 1024)])
def test_the_estimate_ranks_tilings_well(size: tuple[int, int, int]) -> None:
    """The choice costs at most 30 % more than the best of some forty tilings, by the machine."""
    chip, (m, k, n) = CHIPS["ascend910a"], size
    a, b, c = (OperandSpec(s, DType.FLOAT16, NZ) for s in ((m, k), (k, n), (m, n)))
    args = KernelArgs("MatMul", (a, b), (c,))

    def cost(plan: Plan) -> float:
        launch = chip.scheduler.per_block * chip.clock * plan.block_dim
        return time_launch(chip, "MatMul", args, plan).cycles + launch

    tilings = list(MatMul.tilings(args, chip))
    some = tilings[:: max(1, len(tilings) // 40)]
    best = min(cost(MatMul.plan(args, chip, t)) for t in some)
    assert cost(choose_plan("MatMul", args, chip)) <= 1.3 * best


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]), st.booleans(), st.integers(0, 3),
    *(st.integers(1, 130) for _ in range(3)), st.tuples(LAYOUTS, LAYOUTS), st.booleans(),
)  # fmt: skip
def test_bytes_are_summed_in_int32(
    chip: str, unsigned: bool, batch: int, m: int, k: int, n: int,
    layouts: tuple[Layout, Layout], bias: bool,
) -> None:  # fmt: skip
    """Exact, whatever the layouts; C0 is 32."""
    signed = "uint8" not in CHIPS[chip].core.cube.k or not unsigned
    low, high, dtype = (-128, 128, np.int8) if signed else (0, 256, np.uint8)
    rng = np.random.default_rng(m * k + n)
    front = (batch,) * (batch > 0)
    inputs = [rng.integers(low, high, (*front, *s)).astype(dtype) for s in ((m, k), (n, k))]
    lays = [*layouts]
    if bias:
        inputs.append(rng.integers(-9999, 9999, n).astype(np.int32))
        lays.append(ND)
    check_operator(CHIPS[chip], "MatMul", "MatMulV2", inputs, {"transB": 1}, layouts=[*lays, ND])


def reason(chip: str, *shapes: tuple[int, ...], dtype: DType = DType.FLOAT16, **attrs: Any) -> str:
    specs = [OperandSpec(s, dtype) for s in shapes]
    given = tuple(sorted(attrs.items()))
    args = KernelArgs("Gemm", tuple(specs[:-1]), (specs[-1],), given)
    return MatMul.refuse(args, CHIPS[chip])


def test_refusals() -> None:
    square = ((4, 4),) * 3
    assert reason("ascend910a", *square) == ""
    assert "not float32" in reason("ascend910a", *square, dtype=DType.FLOAT32)
    assert "not bfloat16" in reason("toy", *square, dtype=DType.BFLOAT16)
    assert "int32 sums" in reason("ascend910a", *square, dtype=DType.INT8)
    assert "alpha" in reason("ascend910a", *square, alpha=0.5)
    assert "per column" in reason("ascend910a", (4, 4), (4, 4), (4, 1), (4, 4))
    nz = [OperandSpec((20, 20), DType.FLOAT16, NZ) for _ in range(3)]
    bias = OperandSpec((20,), DType.FLOAT16)
    assert "pad" in MatMul.refuse(KernelArgs("Gemm", (*nz[:2], bias), (nz[2],)), CHIPS["toy"])
    assert "more than one way" in reason("toy", (2, 1, 4, 4), (1, 3, 4, 4), (2, 3, 4, 4))


def test_work_is_dealt_to_all_cores() -> None:
    for chip in CHIPS.values():
        specs = [OperandSpec((2048, 2048), DType.FLOAT16) for _ in range(3)]
        args = KernelArgs("MatMul", (specs[0], specs[1]), (specs[2],))
        plan = choose_plan("MatMul", args, chip)
        assert plan.block_dim >= 0.8 * chip.cores.count
        assert prod((plan.tiling["bb"], plan.tiling["bm"], plan.tiling["bn"])) == plan.block_dim
