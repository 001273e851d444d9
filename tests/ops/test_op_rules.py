"""Shape rules, work counts, numerics and errors that ONNX's cases do not reach."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npusim.errors import GraphError, NpusimError, UnsupportedError
from npusim.ir import DType, EpilogueStep, Node, TensorType
from npusim.ops import compute_node, get_operator, infer_node, operator_names
from npusim.ops.elementary import erf

F32 = DType.FLOAT32


def infer(op_type: str, *shapes: tuple[int, ...], **attrs: object):
    """Output types of one node on fp32 inputs."""
    node = Node("n", op_type, tuple(f"x{i}" for i in range(len(shapes))), ("y",), attrs)
    return infer_node(node, [TensorType(s, F32) for s in shapes], [None] * len(shapes))


def compute(op_type: str, *arrays: np.ndarray, **attrs: object):
    """Output of one node."""
    node = Node("n", op_type, tuple(f"x{i}" for i in range(len(arrays))), ("y",), attrs)
    types = [TensorType(a.shape, DType.of(a.dtype)) for a in arrays]
    out = infer_node(node, types, list(arrays))
    (y,) = compute_node(node, list(arrays), out)
    assert TensorType(y.shape, DType.of(y.dtype)) == out[0]
    return y


def test_erf_is_accurate() -> None:
    x = np.concatenate([np.linspace(-6, 6, 20001), np.logspace(-30, 0, 2001)]).astype(np.float32)
    want = np.array([math.erf(v) for v in x])
    relative = np.abs(erf(x) - want) / np.maximum(np.abs(want), 1e-35)
    assert relative.max() < 5e-7
    x64 = x.astype(np.float64)
    np.testing.assert_array_equal(erf(x64), [math.erf(v) for v in x64])


BINARY = {"Add", "Sub", "Mul", "Div", "Mod", "Pow", "PRelu", "Sum", "Max", "Min", "Mean"}
BINARY |= {"And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"}
BINARY |= {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}


def _elementwise() -> list[str]:
    """The elementwise operators of ONNX; CANN's own are checked with their kernels."""
    found = {n: get_operator(n) for n in operator_names()}
    onnx = {n for n, o in found.items() if ".training_" not in o.__module__}
    return [n for n in sorted(onnx) if found[n].elementwise and not n.startswith("Ascend")]


@pytest.mark.parametrize("name", _elementwise())
def test_elementwise_operators_serve_any_rank(name: str) -> None:
    """The executor runs them on storage arrays of other ranks: the numbers must be the same."""
    kind = np.bool_ if name in ("Not", "And", "Or", "Xor") else np.float32
    values = np.random.default_rng(0).uniform(0.1, 6, (3, 2, 3, 4))
    x = list(values.astype(np.int32 if name.startswith("Bit") else kind))
    if name == "Where":
        x[0] = x[0] > 3
    x = x[: 3 if name == "Where" else 2 if name in BINARY else 1]
    attrs = {"Cast": {"to": "float16"}, "BitShift": {"direction": "LEFT"}}.get(name, {})
    flat = compute(name, *(a.reshape(-1) for a in x), **attrs)
    np.testing.assert_array_equal(compute(name, *x, **attrs).reshape(-1), flat)


def test_work_counts() -> None:
    def work(op_type: str, ins: list, outs: list, **attrs: object):
        op = get_operator(op_type)
        types = [[TensorType(s, F32) for s in side] for side in (ins, outs)]
        return op.work(*types, {**op.attrs, **attrs})

    conv = work("Conv", [(1, 64, 56, 56), (128, 32, 3, 3)], [(1, 128, 56, 56)], group=2)
    assert (conv.macs, conv.vector_ops) == (128 * 56 * 56 * 32 * 9, 0)
    assert work("MatMul", [(2, 8, 16), (16, 4)], [(2, 8, 4)]).flops == 2 * 2 * 8 * 16 * 4
    assert work("Gemm", [(16, 8), (4, 16)], [(8, 4)], transA=1).macs == 8 * 16 * 4
    assert work("Softmax", [(2, 8)], [(2, 8)]).vector_ops == 5 * 16
    assert work("MaxPool", [(1, 1, 4, 4)], [(1, 1, 2, 2)], kernel_shape=(2, 2)).vector_ops == 16
    assert work("Sum", [(4,)] * 3, [(4,)]).vector_ops == 8
    assert work("Transpose", [(2, 3)], [(3, 2)]).flops == 0
    assert work("Einsum", [(2, 3), (3, 4)], [(2, 4)], equation="ij,jk->ik").macs == 24


@pytest.mark.parametrize(
    ("error", "op_type", "shapes", "attrs"),
    [
        (GraphError, "Add", [(2, 3), (4,)], {}),
        (GraphError, "MatMul", [(2, 3), (4, 5)], {}),
        (GraphError, "Gemm", [(2, 3), (4, 5)], {}),
        (GraphError, "Gemm", [(2, 3), (3, 5), (7,)], {}),
        (GraphError, "Conv", [(1, 3, 8, 8), (4, 2, 3, 3)], {}),
        (GraphError, "Conv", [(1, 3, 2, 2), (4, 3, 3, 3)], {}),
        (GraphError, "Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (5,)], {}),
        (GraphError, "MaxPool", [(1, 3, 8, 8)], {"kernel_shape": (2,)}),
        (GraphError, "Concat", [(2, 3), (2, 4)], {"axis": 0}),
        (GraphError, "Transpose", [(2, 3)], {"perm": (0, 0)}),
        (GraphError, "Softmax", [(2, 3)], {"axis": 2}),
        (GraphError, "BatchNormalization", [(1, 3, 4, 4), (3,), (3,), (3,), (4,)], {}),
        (GraphError, "Einsum", [(2, 3), (4, 5)], {"equation": "ij,jk->ik"}),
        (GraphError, "Sub", [(2, 3)], {}),
        (GraphError, "Relu", [(2, 3), (2, 3)], {}),
        (GraphError, "Where", [(2, 3), (2, 3)], {}),
        (UnsupportedError, "Reshape", [(2, 3), (2,)], {}),
        (UnsupportedError, "Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], {"auto_pad": "NICE"}),
        (UnsupportedError, "Concat", [(2, 3), (2, 3)], {}),
        (UnsupportedError, "Relu", [(2, 3)], {"slope": 1.0}),
        (UnsupportedError, "Rellu", [(2, 3)], {}),
    ],
)
def test_errors_name_the_node(
    error: type[NpusimError], op_type: str, shapes: list, attrs: dict
) -> None:
    with pytest.raises(error) as e:
        infer(op_type, *shapes, **attrs)
    assert "'n'" in str(e.value) and len(str(e.value).splitlines()) == 3


def test_gather_out_of_range_is_an_error() -> None:
    with pytest.raises(GraphError, match="index"):
        compute("Gather", np.ones((4, 2), np.float32), np.array([4]))


def test_conv_takes_broadcast_and_strided_operands() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 6, 6, 4)).astype(np.float32).transpose(0, 3, 1, 2)
    w = np.broadcast_to(np.float32(0.5), (8, 4, 3, 3))
    want = compute("Conv", np.ascontiguousarray(x), np.ascontiguousarray(w))
    np.testing.assert_allclose(compute("Conv", x, w), want, rtol=1e-5)
    a = np.broadcast_to(np.float32(2), (3, 5))
    np.testing.assert_allclose(compute("MatMul", a, a.T), np.full((3, 3), 20, np.float32))


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_half_precision_accumulates_in_fp32(dtype: object) -> None:
    kind = DType("bfloat16").np if dtype == "bfloat16" else np.dtype(np.float16)
    a = np.full((1, 4096), 1, np.float32).astype(kind)
    y = compute("MatMul", a, (a.T / 4).astype(kind))  # fp16 accumulation would stall at 512
    assert y.dtype == kind and float(y[0, 0]) == 1024


def test_epilogue_runs_before_rounding() -> None:
    steps = (EpilogueStep("Add", 2), EpilogueStep("Relu"))
    node = Node("n", "MatMul", ("a", "b", "c"), ("y",), {}, steps)
    a = np.full((1, 2), 240, np.float16)  # 240 · 240 · 2 overflows fp16 before the bias
    c = np.full((1, 1), -60000, np.float16)
    (y,) = compute_node(node, [a, a.T, c], [TensorType((1, 1), DType.FLOAT16)])
    assert float(y[0, 0]) == 55200
