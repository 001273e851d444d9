"""Quantised operators of random shapes against onnxruntime, in numpy and on the chips' kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from npusim import api
from npusim.chip import load_chip
from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.reference import evaluate
from npusim.program.executable import Executable, TaskKind

CHIPS = {n: load_chip(n) for n in ("toy", "ascend910a", "ascend910b2")}
BYTE = st.sampled_from(["int8", "uint8"])
#: What onnxruntime multiplies.
PAIRS = st.sampled_from([("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
RUNS = settings(max_examples=25, deadline=None)


def integers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """All values of a type."""
    limits = np.iinfo(dtype)
    return np.asarray(rng.integers(limits.min, limits.max + 1, shape), dtype)


def scales(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Around a hundredth."""
    return np.asarray(rng.uniform(0.004, 0.03, shape), np.float32)


def check(
    op_type: str, inputs: dict[str, np.ndarray | None], constant: set[str], chip: str,
    attrs: dict[str, Any] | None = None, apart: int = 0,
) -> Executable:  # fmt: skip
    """One node: numpy and the chip at tile level against onnxruntime; `apart` units at most."""
    names = [k if v is not None else "" for k, v in inputs.items()]
    present = {k: v for k, v in inputs.items() if v is not None}
    feeds = {k: v for k, v in present.items() if k not in constant}
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feeds.items()
    ]
    weights = [numpy_helper.from_array(v, k) for k, v in present.items() if k in constant]
    node = helper.make_node(op_type, names, ["y"], **(attrs or {}))
    y = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "g", infos, [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    whole = onnx.shape_inference.infer_shapes(model)
    session = ort.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, feeds)
    imported = load_onnx(model)
    exe = api.compile_graph(imported, CHIPS[chip], precision="fp32")
    found = (
        evaluate(imported, feeds)["y"],
        api.run(exe, CHIPS[chip], inputs=feeds, tile_level=True).outputs["y"],
    )
    for got in found:
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-6)
        else:
            assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max() <= apart
    return exe


@RUNS
@given(
    st.sampled_from([*CHIPS]), PAIRS, st.tuples(*[st.integers(1, 70)] * 3), st.integers(0, 2),
    st.sampled_from(["none", "one", "column"]), st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_integer_products_are_exact_and_on_the_cube(
    chip: str, pair: tuple[str, str], extents: tuple[int, ...], batch: int, zero: str,
    a_zero: bool, constant: bool, seed: int,
) -> None:  # fmt: skip
    m, k, n = extents
    rng = np.random.default_rng(seed)
    inputs = {
        "a": integers(rng, pair[0], *(batch,) * (batch > 0), m, k),
        "b": integers(rng, pair[1], k, n),
        "az": integers(rng, pair[0]) if a_zero else None,
        "bz": {"none": None, "one": integers(rng, pair[1]), "column": integers(rng, pair[1], n)}[
            zero
        ],
    }
    weights = {"b", "bz"} if constant else set()
    exe = check("MatMulInteger", inputs, weights, chip)
    assert sum(t.uses_cube for t in exe.tasks) >= 1
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)


@RUNS
@given(
    st.sampled_from([*CHIPS]), BYTE, st.tuples(*[st.integers(1, 50)] * 3), st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_products_quantised_again(
    chip: str, dtype: str, extents: tuple[int, ...], constant: bool, seed: int
) -> None:
    m, k, n = extents
    rng = np.random.default_rng(seed)
    inputs = {
        "a": integers(rng, dtype, m, k), "as": scales(rng), "az": integers(rng, dtype),
        "b": integers(rng, dtype, k, n), "bs": scales(rng), "bz": integers(rng, dtype),
        "ys": np.asarray(20 * scales(rng)), "yz": integers(rng, dtype),
    }  # fmt: skip
    weights = {"as", "az", "b", "bs", "bz", "ys", "yz"} if constant else set()
    # A product that lies half-way may be rounded either way: scales are multiplied in fp32.
    exe = check("QLinearMatMul", inputs, weights, chip, apart=1)
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)


@RUNS
@given(
    st.sampled_from([*CHIPS]), BYTE, st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.data(), st.integers(0, 99),
)  # fmt: skip
def test_there_and_back(
    chip: str, dtype: str, shape: list[int], data: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts = (shape[axis],) if data.draw(st.booleans()) else ()
    scale = scales(rng, *parts)
    zero = integers(rng, dtype, *parts) if data.draw(st.booleans()) or dtype == "int8" else None
    constant = {"s", "z"} if data.draw(st.booleans()) else set()
    x = rng.normal(0, 3, shape).astype(np.float32)
    values = {"QuantizeLinear": x, "DequantizeLinear": integers(rng, dtype, *shape)}
    for op_type, value in values.items():
        if op_type == "QuantizeLinear" or zero is not None or dtype == "uint8":
            inputs = {"x": value, "s": scale, "z": zero}
            exe = check(op_type, inputs, constant, chip, {"axis": axis})
            assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)


@RUNS
@given(
    st.sampled_from([*CHIPS]), BYTE, st.tuples(*[st.integers(1, 40)] * 2),
    st.tuples(*[st.integers(1, 3)] * 5), st.booleans(), st.booleans(), st.booleans(),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_convolutions(
    chip: str, kind: str, channels: tuple[int, int], window: tuple[int, ...], again: bool,
    x_zero: bool, w_zero: bool, constant: bool, seed: int,
) -> None:  # fmt: skip
    (ci, co), (kh, kw, stride, pad, batch) = channels, window
    rng = np.random.default_rng(seed)
    attrs = {"strides": [stride, stride], "pads": [pad - 1, 0, 0, pad - 1]}
    x, w = integers(rng, "uint8", batch, ci, 7, 6), integers(rng, kind, co, ci, kh, kw)
    xz, wz = integers(rng, "uint8"), integers(rng, kind) if kind == "uint8" else np.int8([0])
    zeros = {"xz": xz if x_zero else np.zeros_like(xz), "wz": wz if w_zero else np.zeros_like(wz)}
    zeros["wz"] = zeros["wz"].reshape(())
    if again:
        inputs = {
            "x": x, "xs": scales(rng), "xz": zeros["xz"], "w": w, "ws": scales(rng, co),
            "wz": zeros["wz"], "ys": np.asarray(30 * scales(rng)), "yz": integers(rng, "uint8"),
            "b": rng.integers(-5000, 5000, co).astype(np.int32),
        }  # fmt: skip
        exe = check("QLinearConv", inputs, {*inputs} - {"x"} if constant else {"w", "b"}, chip,
                    attrs, apart=1)  # fmt: skip
    else:
        weights = {"w", "xz", "wz"} if constant else {"w"}
        exe = check("ConvInteger", {"x": x, "w": w, **zeros}, weights, chip, attrs)
    assert any(t.uses_cube for t in exe.tasks)
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)
