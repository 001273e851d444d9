"""ConvConv is two convolutions, with what is between them rounded to the result's type."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.errors import GraphError
from npusim.ir import DType, Node, TensorType
from npusim.ops import attributes, compute_node, get_operator, infer_node

RNG = np.random.default_rng(0)
SHAPES = ((2, 6, 9, 8), (5, 6, 3, 3), (5,), (7, 5, 1, 1), (7,))
ATTRS = {"strides": (2, 1), "pads": (1, 0, 1, 2)}


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
@pytest.mark.parametrize("relu", [True, False])
def test_as_two_nodes(dtype: DType, relu: bool) -> None:
    x = [RNG.standard_normal(s).astype(dtype.np) for s in SHAPES]
    types = [TensorType(a.shape, dtype) for a in x]
    both = Node("n", "ConvConv", tuple("xwbvc"), ("y",), {**ATTRS, "relu": relu})
    first = Node("a", "Conv", tuple("xwb"), ("m",), ATTRS)
    second = Node("b", "Conv", tuple("mvc"), ("y",))
    between = infer_node(first, types[:3], [None] * 3)
    out = infer_node(both, types, [None] * 5)
    assert out == infer_node(second, [*between, *types[3:]], [None] * 3)
    (m,) = compute_node(first, x[:3], between)
    m = np.maximum(m, 0) if relu else m
    (want,) = compute_node(second, [m, *x[3:]], out)
    (got,) = compute_node(both, x, out)
    np.testing.assert_array_equal(got, want)


def test_work() -> None:
    types = [TensorType(s, DType.FLOAT16) for s in SHAPES]
    node = Node("n", "ConvConv", tuple("xwbvc"), ("y",), {**ATTRS, "relu": True})
    out = infer_node(node, types, [None] * 5)
    found = get_operator("ConvConv").work(types, out, attributes(node))
    positions = 2 * out[0].shape[2] * out[0].shape[3]
    assert found.macs == positions * (5 * 6 * 9 + 7 * 5)
    assert found.vector_ops == positions * 5


def test_the_second_window_is_one_pixel() -> None:
    types = [TensorType(s, DType.FLOAT16) for s in (*SHAPES[:3], (7, 5, 3, 1), SHAPES[4])]
    node = Node("n", "ConvConv", tuple("xwbvc"), ("y",), ATTRS)
    with pytest.raises(GraphError, match="a 1×1 window"):
        infer_node(node, types, [None] * 5)
