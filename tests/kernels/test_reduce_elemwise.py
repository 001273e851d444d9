"""Fused reductions at tile level against the operators, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array, timed

from npusim.ir import DType, TensorType
from npusim.kernels.reduce import RECIPES
from npusim.kernels.reduce_elemwise import ReduceElemwise
from npusim.ops.cann_fused import FusedStep, types_of
from npusim.program.kernel import KernelArgs, OperandSpec

Steps = tuple[FusedStep, ...]
KEEP, DROP = (("keepdims", 1),), (("keepdims", 0),)
LAST = (-1,)


def step(
    op: str, *operands: int, axes: tuple[int, ...] | None = None, **attrs: object
) -> FusedStep:
    return FusedStep(op, operands, tuple(sorted(attrs.items())), axes)


#: Programs over rows x (input 0), rows or what broadcasts to them y (input 1).
PROGRAMS: dict[str, Steps] = {
    "dot": (step("Mul", 0, 1), step("ReduceSum", 2, axes=LAST)),
    "variance": (
        step("ReduceMean", 0, axes=LAST), step("Sub", 0, 2), step("Mul", 3, 3),
        step("ReduceMean", 4, axes=LAST), step("Add", 5, 1), step("Abs", 6),
    ),
    "normalised": (
        step("Add", 0, 1), step("ReduceL2", 2, axes=LAST), step("Abs", 3), step("Div", 2, 4),
    ),
    "masked softmax": (step("Add", 0, 1), step("Softmax", 2, axis=-1), step("Mul", 3, 1)),
    "log softmax": (step("Mul", 0, 1), step("LogSoftmax", 2, axis=-1)),
    "dropped": (
        step("Abs", 0), step("ReduceMax", 2, axes=LAST, keepdims=0), step("Exp", 3),
        step("Add", 4, 1),
    ),
}  # fmt: skip


def check(chip: str, steps: Steps, *inputs: np.ndarray) -> None:
    half = any(a.dtype.itemsize == 2 for a in inputs)
    bf16 = any(a.dtype.name == "bfloat16" for a in inputs)
    tolerance = 2e-2 if bf16 else 4e-3 if half else 1e-4
    check_operator(
        CHIPS[chip], "ReduceElemwise", "ReduceElemwise", list(inputs), {"steps": steps},
        rtol=tolerance, atol=tolerance,
    )  # fmt: skip


LENGTHS = st.one_of(st.integers(2, 40), st.sampled_from([64, 97, 127, 128, 129, 251, 512, 1000]))
HEIGHTS = st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 700]))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["toy", "ascend910a", "ascend910b2"]),
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(sorted(set(PROGRAMS) - {"dropped"})),
    HEIGHTS,
    LENGTHS,
    st.sampled_from(["rows", "column", "row", "one"]),
)
def test_rows(chip: str, dtype: str, name: str, m: int, n: int, other: str) -> None:
    """Row counts and lengths around 16, 32 and 128; more rows than UB holds at once."""
    rng = np.random.default_rng(m * n)
    shape = {"rows": (m, n), "column": (m, 1), "row": (n,), "one": (1, 1)}[other]
    check(chip, PROGRAMS[name], random_array(rng, (m, n), dtype), random_array(rng, shape, dtype))


@pytest.mark.parametrize("chip", ["toy", "ascend910a", "ascend910b2"])
@pytest.mark.parametrize(
    ("shape", "other"),
    [((2, 3, 20, 33), (2, 1, 20, 33)), ((2, 3, 4, 48), (1, 3, 1, 48)), ((5, 1, 7, 16), (7, 1)),
     ((3, 2, 130), (3, 1, 1))],
)  # fmt: skip
def test_operands_that_broadcast_between_leading_axes(
    chip: str, shape: tuple[int, ...], other: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(1)
    x, y = random_array(rng, shape, "float32"), random_array(rng, other, "float32")
    for name in ("masked softmax", "variance", "dot"):
        check(chip, PROGRAMS[name], x, y)


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
def test_rows_of_two_axes_and_reduced_shapes(chip: str) -> None:
    rng = np.random.default_rng(2)
    x = random_array(rng, (9, 6, 10), "float32")
    both = (step("Exp", 0), step("ReduceSum", 1, axes=(1, 2)), step("Div", 1, 2))
    check(chip, both, x)
    check(chip, PROGRAMS["dropped"], x, random_array(rng, (9, 6), "float32"))
    check(chip, PROGRAMS["dropped"], x, random_array(rng, (6,), "float32"))
    everything = (step("Abs", 0), step("ReduceMean", 1, keepdims=0), step("Sqrt", 2))
    check(chip, everything, x)


@pytest.mark.parametrize("op", sorted(RECIPES))
def test_every_reduction_between_two_steps(op: str) -> None:
    x = np.abs(random_array(np.random.default_rng(3), (11, 37), "float32")) * 0.2 + 0.9
    steps = (step("Mul", 0, 1), step(op, 2, axes=LAST), step("Add", 3, 3))
    for chip in ("toy", "ascend910a", "ascend910b2"):
        check(chip, steps, x, np.full((1,), 1.01, np.float32))


def test_types_change_inside() -> None:
    rng = np.random.default_rng(4)
    x = random_array(rng, (50, 77), "float16")
    wide = (step("Cast", 0, to="float32"), step("ReduceSum", 1, axes=LAST), step("Neg", 2))
    check("ascend910a", wide, x)
    narrow = (step("Softmax", 0, axis=1), step("Cast", 1, to="bfloat16"))
    check("ascend910b2", narrow, x.astype(np.float32))
    mask = random_array(rng, (1, 77), "bool")
    check("ascend910a", (step("Where", 1, 0, 2), step("Softmax", 3, axis=1)), x, mask, x)


def launch(steps: Steps, *shapes: tuple[int, ...], dtype: DType = DType.FLOAT32) -> KernelArgs:
    specs = tuple(OperandSpec(s, dtype) for s in shapes)
    out = types_of([TensorType(s.shape, s.dtype) for s in specs], steps)[-1]
    result = OperandSpec(out.shape, out.dtype)
    return KernelArgs("ReduceElemwise", specs, (result,), (("steps", steps),))


def test_refusals() -> None:
    chip = CHIPS["ascend910a"]

    def why(steps: Steps, *shapes: tuple[int, ...], dtype: DType = DType.FLOAT32) -> str:
        return ReduceElemwise.refuse(launch(steps, *shapes, dtype=dtype), chip)

    dot = PROGRAMS["dot"]
    assert not why(dot, (8, 8), (8, 8))
    assert "axes (0,)" in why((dot[0], step("ReduceSum", 2, axes=(0,))), (8, 8), (8, 8))
    assert "(8, 3)" in why((step("ReduceSum", 0, axes=LAST), step("Add", 2, 1)), (8, 8), (8, 3))
    assert "int64" in why(dot, (8, 8), (8, 8), dtype=DType.INT64)
    assert "int32" in why(
        (step("ReduceSum", 0, axes=LAST), step("Neg", 1)), (8, 8), dtype=DType.INT32
    )
    long = launch(dot, (2, 100_000), (2, 100_000))
    assert not ReduceElemwise.refuse(long, chip)
    assert not list(ReduceElemwise.tilings(long, chip))  # rows that UB does not hold


def test_estimates_are_near_what_the_machine_takes() -> None:
    """Within a factor of two, so that what is weighed with them is."""
    for chip in (CHIPS["ascend910a"], CHIPS["ascend910b2"]):
        for name, steps in PROGRAMS.items():
            for m, n in ((4096, 1024), (512, 128), (8192, 64)):
                y = (m,) if name == "dropped" else (m, n)
                args = launch(steps, (m, n), y)
                result, plan = timed(chip, "ReduceElemwise", args)
                guess = ReduceElemwise.estimate(args, chip, plan.tiling)
                assert 0.5 < guess / result.cycles < 2, (
                    chip.name,
                    name,
                    m,
                    n,
                    guess,
                    result.cycles,
                )
