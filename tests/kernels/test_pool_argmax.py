"""Max pooling with its mask, and its gradient, at tile level: exact."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim.kernels  # noqa: F401  (registers)
from npusim.ir import DType, Layout, Node, TensorType, pack, unpack
from npusim.machine.launch import run_tile_level, time_launch
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan
from tests.kernels.launching import CHIPS


def _run(chip: str, op: str, values: list[np.ndarray], attrs: dict[str, object]) -> None:
    names = tuple(f"x{i}" for i in range(len(values)))
    outputs = 2 if op == "MaxPoolWithArgmax" else 1
    node = Node("n", op, names, tuple(f"y{i}" for i in range(outputs)), attrs)
    types = infer_node(node, [TensorType(v.shape, DType.of(v.dtype)) for v in values], values)

    def spec(t: TensorType) -> OperandSpec:
        layout = Layout.ND if t.dtype is DType.UINT16 else Layout.NC1HWC0
        return OperandSpec(t.shape, t.dtype, layout)

    ins = tuple(spec(TensorType(v.shape, DType.of(v.dtype))) for v in values)
    outs = tuple(spec(t) for t in types)
    args = KernelArgs(op, ins, outs, tuple(sorted(attrs.items())))
    kernel = "PoolArgmaxV1" if CHIPS[chip].cores.split else "PoolArgmax"
    plan = choose_plan(kernel, args, CHIPS[chip])
    stored = [np.ascontiguousarray(pack(v, s.layout)) for v, s in zip(values, ins, strict=True)]
    results = [np.zeros(o.storage_shape, o.dtype.np) for o in outs]
    run_tile_level(CHIPS[chip], kernel, args, plan, [*stored, *results])
    want = compute_node(node, values, types)
    for r, o, w in zip(results, outs, want, strict=True):
        np.testing.assert_array_equal(unpack(r, o.shape, o.layout), w)
    fast = time_launch(CHIPS[chip], kernel, args, plan, fold=False)
    assert fast.cycles == time_launch(CHIPS[chip], kernel, args, plan, engine="simpy").cycles


@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(3, 12),
    st.integers(3, 12),
    st.integers(1, 4),
    st.sampled_from([(3, 3), (2, 2), (1, 3)]),
    st.sampled_from([(0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1)]),
)
def test_maxima_mask_and_gradient(
    c1: int,
    h: int,
    w: int,
    stride: int,
    kernel: tuple[int, int],
    pads: tuple[int, ...],
) -> None:
    pads = tuple(min(p, k - 1) for p, k in zip(pads, kernel * 2, strict=True))
    attrs = {"kernel_shape": kernel, "strides": (stride, stride), "pads": pads}
    _both_ways("ascend910a", (2, 16 * c1, h, w), attrs)
    _both_ways("ascend910b2", (2, 16 * c1, h, w), attrs, "float16" if h % 2 else "float32")


def test_bands_of_large_images() -> None:
    # Ragged bands both ways (201 rows of outputs), and windows that three bands would share.
    _both_ways("ascend910a", (1, 16, 203, 65), {"kernel_shape": (3, 3), "strides": (1, 1)})
    _both_ways("ascend910a", (1, 16, 99, 147), {"kernel_shape": (3, 3), "strides": (2, 2)})
    # One row of outputs at a time: large windows, and rows that fill UB.
    _both_ways("ascend910a", (1, 16, 20, 17), {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2)})
    wide = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (0, 0, 1, 1)}
    _both_ways("ascend910a", (1, 16, 12, 660), wide)
    _both_ways("ascend910b2", (3, 16, 55, 55), {"kernel_shape": (3, 3), "strides": (2, 2)})


def test_rows_of_the_first_pool_of_resnet() -> None:
    attrs = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (0, 0, 1, 1)}
    _both_ways("ascend910a", (1, 16, 112, 112), attrs)


def _both_ways(
    chip: str, shape: tuple[int, ...], attrs: dict[str, object], kind: str = "float16"
) -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-3, 4, shape).astype(kind)  # ties on purpose
    _run(chip, "MaxPoolWithArgmax", [x], attrs)
    node = Node("n", "MaxPoolWithArgmax", ("x",), ("y", "m"), attrs)
    y, mask = compute_node(
        node, [x], infer_node(node, [TensorType(x.shape, DType.of(x.dtype))], [x])
    )
    dy = rng.integers(-3, 4, y.shape).astype(kind)
    _run(chip, "MaxPoolGradWithArgmax", [x, dy, mask], attrs)
