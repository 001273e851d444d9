"""A convolution on cube cores; its residual and activation on vector cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, execute, random_array, timed

from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType
from npusim.kernels import cube_vector as cv
from npusim.ops import compute_node
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel

CHIP, NAME = CHIPS["ascend910b2"], "Conv2DEpilogue"
NC, FZ = Layout.NC1HWC0, Layout.FRACTAL_Z
ADD, RELU, SIGMOID = EpilogueStep("Add", 3), EpilogueStep("Relu"), EpilogueStep("Sigmoid")
SWISH, HARD = EpilogueStep("Swish", None, (("alpha", 1.0),)), EpilogueStep("HardSwish")
CLIP = (
    EpilogueStep("Max", None, (("const1", 0.0),)),
    EpilogueStep("Min", None, (("const1", 0.5),)),
)
MASKED = EpilogueStep("ThresholdedRelu", None, (("alpha", 0.5),))
CHAINS = [
    (ADD,), (ADD, RELU), (RELU, ADD), (SWISH, ADD), (ADD, HARD), (EpilogueStep("Mul", 3), RELU),
    (EpilogueStep("Sub", 3), MASKED), (SWISH,), (ADD, SIGMOID),
]  # fmt: skip


def launch(
    shape: tuple[int, int, int, int], co: int, kernel: int, *steps: EpilogueStep,
    dtype: DType = DType.FLOAT16, stride: int = 1,
) -> KernelArgs:  # fmt: skip
    """A convolution with a bias that keeps its size but for the stride."""
    n, c, h, w = shape
    x, y = OperandSpec(shape, dtype, NC), OperandSpec((n, co, h // stride, w // stride), dtype, NC)
    weights, bias = OperandSpec((co, c, kernel, kernel), dtype, FZ), OperandSpec((co,), dtype)
    attrs = {"group": 1, "strides": (stride,) * 2, "pads": (kernel // 2,) * 4, "dilations": (1, 1)}
    others = (y,) if any(s.operand for s in steps) else ()
    return KernelArgs(
        "Conv", (x, weights, bias, *others), (y,), tuple(sorted(attrs.items())), steps
    )


def arrays(args: KernelArgs, seed: int = 0) -> list[np.ndarray]:
    """Values of a launch's inputs."""
    rng = np.random.default_rng(seed)
    made = [random_array(rng, o.shape, o.dtype.value) for o in args.inputs if o is not None]
    scale = np.sqrt(np.prod(args.operands[1].shape[1:]))
    made[1] = (made[1].astype(np.float32) / scale).astype(made[1].dtype)
    return made


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 19), st.integers(1, 19)),
    st.integers(1, 90), st.sampled_from([1, 1, 3]), st.integers(1, 2), st.sampled_from(CHAINS),
    st.sampled_from([DType.FLOAT16, DType.FLOAT32, DType.BFLOAT16]),
)  # fmt: skip
def test_as_the_operator(
    shape: tuple[int, int, int, int], co: int, kernel: int, stride: int,
    steps: tuple[EpilogueStep, ...], dtype: DType,
) -> None:  # fmt: skip
    """Ragged tiles, odd rows, channels that fill no block; both engines agree (see `execute`)."""
    assume(shape[2] % stride == shape[3] % stride == 0)
    if SIGMOID in steps:  # which fills the padding of the last block
        co = 16 * -(-co // 16)
    args = launch(shape, co, kernel, *steps, dtype=dtype, stride=stride)
    rough = {DType.FLOAT16: (3e-3, 1e-2), DType.FLOAT32: (1e-5, 1e-5), DType.BFLOAT16: (2e-2, 0.1)}
    rtol, atol = rough[dtype]
    check_operator(
        CHIP, NAME, "Conv", arrays(args), dict(args.attrs), epilogue=steps,
        layouts=[o.layout for o in args.operands], rtol=rtol, atol=atol,
    )  # fmt: skip


def test_rounds_as_two_kernels_do() -> None:
    """The convolution's result is rounded to fp16, then the sum: bit for bit."""
    args = launch((2, 40, 13, 9), 56, 1, ADD, RELU)
    x = arrays(args)
    (got,) = _run(args, x)
    alone = replace(args, inputs=args.inputs[:3], epilogue=())
    (first,) = _run(alone, x[:3], "Conv2D")
    node = Node("n", "Add", ("a", "b"), ("y",), {}, (RELU,))
    want = compute_node(node, [first, x[3]], [TensorType(first.shape, DType.FLOAT16)])
    np.testing.assert_array_equal(got, want[0])


def test_clip() -> None:
    """Its limits are constants of the launch."""
    args = launch((2, 16, 9, 11), 40, 3, ADD, *CLIP)
    x = arrays(args)
    (summed,) = _run(replace(args, epilogue=(ADD,)), x)
    np.testing.assert_array_equal(_run(args, x)[0], np.clip(summed, 0.0, 0.5))


def _run(args: KernelArgs, x: list[np.ndarray], kernel: str = NAME) -> list[np.ndarray]:
    names = tuple(f"x{i}" for i in range(len(x)))
    node = Node("n", "Conv", names, ("y",), {}, args.epilogue)
    layouts = [o.layout for o in args.operands]
    types = [TensorType(args.outputs[0].shape, args.outputs[0].dtype)]
    return execute(CHIP, kernel, node, x, types, layouts, dict(args.attrs))[0]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("shape", [(64, 56, 256), (256, 14, 1024)])
def test_beside_the_convolution(shape: tuple[int, int, int], dtype: DType) -> None:
    """A residual of ResNet-50: quicker than two kernels, no quicker than HBM, or either alone."""
    c, side, co = shape
    args = launch((24, c, side, side), co, 1, ADD, RELU, dtype=dtype)
    together, plan = timed(CHIP, NAME, args)
    conv, _ = timed(CHIP, "Conv2D", replace(args, inputs=args.inputs[:3], epilogue=()))
    y = args.outputs[0]
    add, _ = timed(CHIP, "Elementwise", KernelArgs("Add", (y, y), (y,), (), (RELU,)))
    assert together.cycles < 0.8 * (conv.cycles + add.cycles)
    touched = sum(o.nbytes for o in (args.operands[0], *args.operands[3:]))
    assert together.cycles > touched / CHIP.hbm_rate
    assert plan.workspace == (
        plan.block_dim * cv.SLOTS * 256 * plan.tiling["m0"] * plan.tiling["n0"] * dtype.size,
    )


@pytest.mark.parametrize(("co", "side"), [(64, 14), (48, 14), (48, 7)])
def test_two_vector_cores_as_one_that_counts_twice(co: int, side: int) -> None:
    """Where halves are alike one core is simulated; at tile level always both."""
    args = launch((3, 32, side, side), co, 1, SWISH)
    plan, kernel = choose_plan(NAME, args, CHIP), get_kernel(NAME)
    counts = [m.count for m in kernel.members(args, CHIP, plan, 0, 0, False)]
    assert counts in ([1, 2], [1, 1, 1])
    assert [m.count for m in kernel.members(args, CHIP, plan, 0, 0, True)] == [1, 1, 1]


GOOD = launch((1, 16, 8, 8), 32, 1, ADD)
WIDE = replace(GOOD.outputs[0], dtype=DType.FLOAT32)


def residual(shape: tuple[int, ...], layout: Layout = NC) -> KernelArgs:
    """With another residual."""
    other = OperandSpec(shape, DType.FLOAT16, layout)
    return replace(GOOD, inputs=(*GOOD.inputs[:3], other))


@pytest.mark.parametrize(("chip", "args", "why"), [
    ("ascend910a", GOOD, "cube and vector are one core"),
    ("ascend910b2", replace(GOOD, epilogue=()), "no steps"),
    ("ascend910b2", replace(GOOD, epilogue=(EpilogueStep("Softmax"),)), "epilogue Softmax"),
    ("ascend910b2", residual((1, 32, 1, 1)), "broadcasts"),
    ("ascend910b2", residual(GOOD.outputs[0].shape, Layout.ND), "in ND"),
    ("ascend910b2", replace(GOOD, outputs=(WIDE,)), "results in float32"),
    ("ascend910b2", launch((1, 16, 8, 8), 30, 1, EpilogueStep("Log")), "not finite"),
    ("ascend910b2", launch((1, 16, 8, 8), 30, 1, EpilogueStep("Div", 3)), "not finite"),
    ("ascend910b2", replace(GOOD, attrs=(("group", 2),)), "whole blocks of channels"),
])  # fmt: skip
def test_what_it_refuses(chip: str, args: KernelArgs, why: str) -> None:
    assert why in get_kernel(NAME).refuse(args, CHIPS[chip])
