"""NaN and infinities in inputs: results as IEEE 754 has them, finite sums saturate in fp16."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from onnx_building import model, node, onnxruntime

from npusim import api
from npusim.chip import load_chip
from npusim.frontends.onnx_import import load_onnx

X = np.array([[1, np.nan, 2, -1], [np.inf, 1, 2, 3], [-np.inf, 0, 1, 5], [1, 2, 3, 4]], np.float32)
W = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
NODES = {
    "MatMul": node("MatMul", "x w", "y"),
    "Softmax": node("Softmax", "x", "y", axis=-1),
    "Sigmoid": node("Sigmoid", "x", "y"),
    "Exp": node("Exp", "x", "y"),
    "ReduceSum": node("ReduceSum", "x", "y"),
    "Sub": node("Sub", "x x", "y"),
    "Abs": node("Abs", "x", "y"),
    "Relu": node("Relu", "x", "y"),
}


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", NODES)
def test_strange_numbers_go_through(name: str, precision: str) -> None:
    proto = model([NODES[name]], {"x": [4, 4]}, ["y"], {"w": W} if name == "MatMul" else {})
    chip = load_chip("ascend910b2")
    exe = api.compile_graph(load_onnx(proto), chip, precision=precision)
    (got,) = api.run(exe, chip, inputs={"x": X}).outputs.values()
    (want,) = onnxruntime(proto, {"x": X}).values()
    tolerance = 1e-5 if precision == "fp32" else 5e-3
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_a_maximum_of_nan_is_nan() -> None:
    """As in numpy; onnxruntime's depends on where the NaN stands."""
    proto = model([node("ReduceMax", "x a", "y")], {"x": [4, 4]}, ["y"], {"a": np.array([1])})
    chip = load_chip("ascend910b2")
    exe = api.compile_graph(load_onnx(proto), chip, precision="fp32")
    (got,) = api.run(exe, chip, inputs={"x": X}).outputs.values()
    np.testing.assert_array_equal(got, X.max(1, keepdims=True))


def test_finite_numbers_saturate_in_fp16() -> None:
    proto = model([node("Add", "x x", "y")], {"x": [3]}, ["y"], elem=TensorProto.FLOAT16)
    chip = load_chip("ascend910b2")
    exe = api.compile_graph(load_onnx(proto), chip, precision="fp16")
    x = np.array([60000, -60000, np.inf], np.float16)
    (got,) = api.run(exe, chip, inputs={"x": x}).outputs.values()
    assert got.tolist() == [65504, -65504, np.inf]
