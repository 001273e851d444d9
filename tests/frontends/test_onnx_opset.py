"""Models of old opsets, and contrib operators, against onnxruntime, which runs them as they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_building import model, node, onnxruntime

from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.reference import evaluate

X = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)
OLD = {
    "squeeze": (7, [node("Unsqueeze", "x", "u", axes=[0, 2]), node("Squeeze", "u", "y", axes=[2])]),
    "reduce_sum": (11, [node("ReduceSum", "x", "y", axes=[-1], keepdims=0)]),
    "reduce_mean": (13, [node("ReduceMean", "x", "y", axes=[0, 2])]),
    "reduce_all": (13, [node("ReduceMax", "x", "y", keepdims=0)]),
    "clip": (7, [node("Clip", "x", "y", min=-0.5, max=0.25)]),
    "clip_low": (9, [node("Clip", "x", "y", min=0.0)]),
    "dropout": (10, [node("Dropout", "x", "y mask", ratio=0.3)]),
    "slice": (9, [node("Slice", "x", "y", starts=[1, -3], ends=[9, 100], axes=[1, 2])]),
    "slice_all": (7, [node("Slice", "x", "y", starts=[0, 1, 2], ends=[1, 3, -1])]),
    "pad": (7, [node("Pad", "x", "y", pads=[0, 1, 2, 1, 0, 1], value=1.5)]),
    "pad_edge": (9, [node("Pad", "x", "y", pads=[0, 1, 2, 1, 0, 1], mode="edge")]),
    "split": (11, [node("Split", "x", "y z", axis=2, split=[2, 4])]),
    "split_even": (7, [node("Split", "x", "y z", axis=1)]),
    "softmax_matrix": (9, [node("Softmax", "x", "y")]),
    "softmax_last": (12, [node("Softmax", "x", "y", axis=2)]),
    "log_softmax": (11, [node("LogSoftmax", "x", "y", axis=0)]),
    "hardmax": (7, [node("Hardmax", "x", "y", axis=-2)]),
    "upsample": (8, [node("Upsample", "x", "y", scales=[1.0, 2.0, 3.0])]),
    "upsample_input": (9, [node("Upsample", "x scales", "y", mode="nearest")]),
    "upsample_linear": (
        9,
        [
            node("Unsqueeze", "x", "u", axes=[0]),
            node("Upsample", "u scales4", "y", mode="linear"),
        ],
    ),
    "resize": (10, [node("Resize", "x scales", "y")]),
    "batch_norm": (7, [node("BatchNormalization", "x c c c p", "y")]),
    "sum": (7, [node("Sum", "x x x", "y")]),
    "scatter": (9, [node("Scatter", "x i u", "y", axis=1)]),
    "gemm": (7, [node("Flatten", "x", "f", axis=2), node("Gemm", "f w c", "y", transB=1)]),
    "prelu": (7, [node("PRelu", "x slope", "y")]),
    "max_pool": (8, [node("MaxPool", "x", "y", kernel_shape=[3], strides=[2])]),
    "group_norm": (18, [node("GroupNormalization", "x g g", "y", num_groups=2)]),
}
WEIGHTS = {
    "c": np.array([1, -2, 3, 0.5], np.float32),
    "p": np.array([1, 2, 3, 0.5], np.float32),
    "g": np.array([1, -2], np.float32),
    "w": np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32),
    "i": np.array([[[3, 1, 0, 2, 1, 1]]]),
    "u": np.full((1, 1, 6), 7, np.float32),
    "slope": np.array([[0.1], [0.2], [0.3], [0.4]], np.float32),
    "scales": np.array([1, 2, 2], np.float32),
    "scales4": np.array([1, 1, 2, 2], np.float32),
}


def check(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    want = onnxruntime(proto, feeds)
    got = evaluate(load_onnx(proto), feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("case", OLD)
def test_old_forms(case: str) -> None:
    opset, nodes = OLD[case]
    made = {o for n in nodes for o in n.output}
    used = {k: v for k, v in WEIGHTS.items() if k not in made and any(k in n.input for n in nodes)}
    outputs = [o for o in nodes[-1].output if o != "mask"]
    check(model(nodes, {"x": [2, 4, 6]}, outputs, used, opset), {"x": X})


def contrib(op_type: str, inputs: str, outputs: str, **attrs: float) -> onnx.NodeProto:
    n = node(op_type, inputs, outputs, **attrs)
    n.domain = "com.microsoft"
    return n


@pytest.mark.parametrize(
    ("op", "outputs"),
    [
        (contrib("Gelu", "x", "y"), ["y"]),
        (contrib("BiasGelu", "x b", "y"), ["y"]),
        (contrib("FastGelu", "x b", "y"), ["y"]),
        (contrib("FastGelu", "x", "y"), ["y"]),
        (contrib("QuickGelu", "x", "y"), ["y"]),
        (contrib("SkipLayerNormalization", "x x s b", "y", epsilon=1e-5), ["y"]),
        (contrib("SkipLayerNormalization", "x x s b b", "y m v z"), ["y", "z"]),
        (contrib("SkipSimplifiedLayerNormalization", "x x s b", "y", epsilon=1e-5), ["y"]),
    ],
)
def test_contrib_operators(op: onnx.NodeProto, outputs: list[str]) -> None:
    weights = {"s": np.full(6, 1.5, np.float32), "b": np.arange(6, dtype=np.float32)}
    weights = {k: v for k, v in weights.items() if k in op.input}
    check(model([op], {"x": [2, 4, 6]}, outputs, weights), {"x": X})


def test_local_functions_are_inlined() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["t"]), helper.make_node("Relu", ["t"], ["r"])]
    imports = [helper.make_opsetid("", 21)]
    function = helper.make_function("local", "Square", ["a"], ["r"], body, imports)
    call = helper.make_node("Square", ["x"], ["y"], domain="local")
    proto = model([call], {"x": [2, 4, 6]}, ["y"])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    graph = load_onnx(proto)
    assert [n.op_type for n in graph.nodes] == ["Mul", "Relu"]
    np.testing.assert_allclose(evaluate(graph, {"x": X})["y"], X * X)
