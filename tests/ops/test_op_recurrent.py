"""LSTM, GRU and RNN with random options against onnxruntime, as operators and unrolled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from npusim.chip import load_chip
from npusim.compiler.options import CompileContext, CompileOptions
from npusim.compiler.passes.recurrent import unroll_recurrent
from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.reference import evaluate
from npusim.ir import verify

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ScaledTanh", "HardSigmoid",
               "Elu", "Softsign", "Softplus")  # fmt: skip


def network(op_type: str, extents: list[int], options: dict[str, Any], given: set[str], seed: int
            ) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """A model of one node, and its inputs."""
    steps, batch, size, hidden = extents
    rng = np.random.default_rng(seed)
    both = 2 if options["direction"] == "bidirectional" else 1
    n = GATES[op_type] * hidden

    def values(*shape: int) -> np.ndarray:
        return rng.uniform(-0.6, 0.6, shape).astype(np.float32)

    x = {"X": values(steps, batch, size), "W": values(both, n, size), "R": values(both, n, hidden)}
    rest = {
        "B": values(both, 2 * n),
        "sequence_lens": rng.integers(1, steps + 1, batch).astype(np.int32),
        "initial_h": values(both, batch, hidden),
        "initial_c": values(both, batch, hidden),
        "P": values(both, 3 * hidden),
    }
    names = list(rest)[: 5 if op_type == "LSTM" else 3]
    x |= {k: rest[k] for k in names if k in given}
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    inputs = ["X", "W", "R", *(k if k in given else "" for k in names)]
    node = helper.make_node(op_type, inputs, outputs, "net", hidden_size=hidden, **options)
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in x.items()
    ]
    results = [helper.make_tensor_value_info(o, onnx.TensorProto.FLOAT, None) for o in outputs]
    graph = helper.make_graph([node], "g", infos, results)
    imports = [helper.make_opsetid("", 14)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), x


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["LSTM", "GRU", "RNN"]), st.tuples(*[st.integers(1, 5)] * 4), st.data(),
    st.sets(st.sampled_from(["B", "sequence_lens", "initial_h", "initial_c", "P"])),
)  # fmt: skip
def test_any_options(op_type: str, extents: tuple[int, ...], data: st.DataObject, given: set[str]
                     ) -> None:  # fmt: skip
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    options: dict[str, Any] = {"direction": direction}
    count = FUNCTIONS[op_type] * (2 if direction == "bidirectional" else 1)
    if data.draw(st.booleans()):
        names = st.sampled_from(ACTIVATIONS)
        options["activations"] = data.draw(st.lists(names, min_size=count, max_size=count))
        # onnxruntime's own defaults of these differ from ONNX's.
        options["activation_alpha"], options["activation_beta"] = [0.3] * count, [0.2] * count
    if data.draw(st.booleans()):
        options["clip"] = 0.4
    if op_type == "GRU":
        options["linear_before_reset"] = data.draw(st.integers(0, 1))
    if op_type == "LSTM" and "P" not in given:
        options["input_forget"] = data.draw(st.integers(0, 1))
    model, x = network(op_type, [*extents], options, given, data.draw(st.integers(0, 99)))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, x)
    graph = load_onnx(model)
    taken = {*graph.tensors, *(n.name for n in graph.nodes)}
    ctx = CompileContext(load_chip("ascend910b2"), CompileOptions(), taken=taken)
    unrolled = verify(unroll_recurrent(graph, ctx))
    assert not {n.op_type for n in unrolled.nodes} & set(GATES)
    for which in (graph, unrolled):
        got = evaluate(which, x)
        for name, value in zip(graph.outputs, want, strict=True):
            np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantised_weights(per_channel: bool) -> None:
    """onnxruntime's DynamicQuantizeLSTM, but for the sequence, which it quantises too."""
    steps, batch, size, hidden, rng = 6, 2, 12, 8, np.random.default_rng(0)
    columns = (4 * hidden,) if per_channel else ()
    weights: dict[str, np.ndarray] = {}
    for name, rows in (("W", size), ("R", hidden)):
        weights[name] = rng.integers(-128, 128, (2, rows, 4 * hidden)).astype(np.int8)
        weights[f"{name}s"] = rng.uniform(0.002, 0.006, (2, *columns)).astype(np.float32)
        weights[f"{name}z"] = np.zeros((2, *columns), np.int8)
    inputs = ["X", "W", "R", *[""] * 5, "Ws", "Wz", "Rs", "Rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["Y"], "net", domain="com.microsoft",
        direction="bidirectional", hidden_size=hidden,
    )  # fmt: skip
    x = {"X": rng.normal(size=(steps, batch, size)).astype(np.float32)}
    info = helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, x["X"].shape)
    y = helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    imports = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [info], [y], held)
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, x)
    got = evaluate(load_onnx(model), x)["Y"]
    assert np.abs(got - want).max() < 0.02 < np.abs(want).max()
