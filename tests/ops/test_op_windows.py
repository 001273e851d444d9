"""Convolutions and pools of random geometry against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from npusim.errors import GraphError
from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.reference import evaluate

EXAMPLES = settings(max_examples=120, deadline=None, derandomize=True)


@st.composite
def geometry(draw: st.DrawFn, rank: int) -> dict[str, Any]:
    """Window attributes of one spatial rank."""

    def some(low: int, high: int, n: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=n, max_size=n))

    attrs: dict[str, Any] = {
        "kernel_shape": some(1, 3),
        "strides": some(1, 3),
        "dilations": some(1, 2),
    }
    mode = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if mode == "NOTSET":
        limits = zip(some(0, 2, 2 * rank), attrs["kernel_shape"] * 2, strict=True)
        attrs["pads"] = [min(pad, kernel - 1) for pad, kernel in limits]
    else:
        attrs["auto_pad"] = mode
        attrs["dilations"] = [1] * rank
        # onnxruntime's pools refuse SAME with a stride above the kernel
        pairs = zip(attrs["strides"], attrs["kernel_shape"], strict=True)
        attrs["strides"] = [min(stride, kernel) for stride, kernel in pairs]
    return attrs


def compare(op_type: str, arrays: list[np.ndarray], attrs: dict[str, Any]) -> None:
    """npusim's result for one node equals onnxruntime's."""
    names = [f"x{i}" for i in range(len(arrays))]
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(op_type, names, ["y"], **attrs)
    graph = helper.make_graph([node], "g", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    feeds = dict(zip(names, arrays, strict=True))
    try:
        got = evaluate(load_onnx(model), feeds)["y"]
    except GraphError:  # a window larger than the input
        assume(False)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@EXAMPLES
@given(st.data(), st.integers(1, 2), st.integers(1, 2), st.sampled_from([(1, 3), (2, 2), (4, 1)]))
def test_conv(data: st.DataObject, rank: int, n: int, channels: tuple[int, int]) -> None:
    attrs = data.draw(geometry(rank))
    group, per_group = channels
    size = data.draw(st.lists(st.integers(3, 8), min_size=rank, max_size=rank))
    x, w = normal(n, group * per_group, *size), normal(group * 2, per_group, *attrs["kernel_shape"])
    compare("Conv", [x, w, normal(group * 2)], {**attrs, "group": group})


@EXAMPLES
@given(st.data(), st.integers(1, 2), st.booleans(), st.booleans(), st.booleans())
def test_pool(data: st.DataObject, rank: int, largest: bool, ceil: bool, count: bool) -> None:
    attrs = data.draw(geometry(rank))
    size = data.draw(st.lists(st.integers(4, 9), min_size=rank, max_size=rank))
    attrs |= {"ceil_mode": int(ceil)} | ({} if largest else {"count_include_pad": int(count)})
    x = normal(2, 3, *size)
    compare("MaxPool" if largest else "AveragePool", [x], attrs)


@EXAMPLES
@given(st.data(), st.integers(1, 2), st.sampled_from([1, 2]))
def test_conv_transpose(data: st.DataObject, rank: int, group: int) -> None:
    attrs = data.draw(geometry(rank))
    assume("auto_pad" not in attrs)
    size = data.draw(st.lists(st.integers(2, 5), min_size=rank, max_size=rank))
    w = normal(group * 2, 3, *attrs["kernel_shape"])
    compare("ConvTranspose", [normal(2, group * 2, *size), w], {**attrs, "group": group})
