"""Shapes that follow from the elements of inputs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_building import model, node, onnxruntime

from npusim.chip import load_chip
from npusim.compiler import CompileOptions
from npusim.dynamic import DynamicModel
from npusim.errors import ModelError, NeedsValuesError, UnsupportedError
from npusim.frontends import onnx_values
from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.reference import evaluate

INT64 = TensorProto.INT64


def reshaping() -> object:
    """y = Reshape(x, s + s) · x has a twin that reads s itself."""
    nodes = [node("Add", "s s", "t"), node("Reshape", "x t", "y"), node("Neg", "s", "z")]
    proto = model(nodes, {"x": [2, "n"], "s": [2]}, ["y", "z"])
    proto.graph.input[1].type.tensor_type.elem_type = INT64
    proto.graph.output[1].type.tensor_type.elem_type = INT64
    return proto


def test_values_give_shapes_and_stay_inputs() -> None:
    proto = reshaping()
    x, s = np.arange(8, dtype=np.float32).reshape(2, 4), np.array([1, 2])
    with pytest.raises(NeedsValuesError, match="computed at run time"):
        load_onnx(proto, shapes={"x": (2, 4)})
    graph = load_onnx(proto, values={"x": x, "s": s})
    assert graph.inputs == ["x", "s"] and list(graph.assumed) == ["s"]
    assert graph.type_of("y").shape == (2, 4)
    got = evaluate(graph, {"x": x, "s": s})
    want = onnxruntime(proto, {"x": x, "s": s})
    assert all(np.array_equal(got[k], want[k]) for k in want)


def test_values_must_fit_their_inputs() -> None:
    with pytest.raises(ModelError, match="value of input 's' is float64"):
        load_onnx(reshaping(), values={"x": np.ones((2, 2), np.float32), "s": np.ones(2)})
    listed = model([node("Add", "x w", "y")], {"x": [2], "w": [2]}, ["y"], {"w": np.ones(2, "f4")})
    with pytest.raises(ModelError, match="no input 'w'"):
        load_onnx(listed, values={"w": np.ones(2, np.float32)})
    with pytest.raises(ModelError, match="no input 'q'"):
        load_onnx(reshaping(), values={"q": np.ones(2)})


def test_what_shapes_need_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_values, "LIMIT", 8)
    with pytest.raises(UnsupportedError, match="16 bytes of values"):
        load_onnx(reshaping(), values={"x": np.ones((2, 4), np.float32), "s": np.array([1, 2])})


def test_a_dynamic_model_compiles_once_per_shape_and_value() -> None:
    dynamic = DynamicModel(reshaping(), load_chip("ascend910b2"), CompileOptions("fp32"))

    def compiled(columns: int, *s: int) -> object:
        x = np.ones((2, columns), np.float32)
        return dynamic.compile({"x": x, "s": np.array(s)})

    first = compiled(4, 1, 2)
    assert compiled(4, 1, 2) is first
    assert compiled(4, 2, 1) is not first
    assert compiled(2, 1, 1) is not first
    assert len(dynamic.compiled) == 3
    assert first.executable.buffers["y"].shape == (2, 4)


def body(nodes: list, inputs: list[str], outputs: list[str]) -> object:
    """A subgraph whose values have no declared types."""
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in (*inputs, *outputs)]
    return helper.make_graph(nodes, "body", infos[: len(inputs)], infos[len(inputs) :])


def agrees(proto: object, feeds: dict[str, np.ndarray]) -> list[str]:
    """Compare with onnxruntime; the operators of the graph."""
    graph = load_onnx(proto, values=feeds)
    got, want = evaluate(graph, feeds), onnxruntime(proto, feeds)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6)
    return [n.op_type for n in graph.nodes]


def test_the_branch_taken_is_inlined() -> None:
    yes = body([node("Relu", "x", "r")], [], ["r"])
    no = body([node("Neg", "x", "a"), node("Exp", "a", "r")], [], ["r"])
    proto = model(
        [node("If", "c", "y", name="choose", then_branch=yes, else_branch=no)], {"x": [2]}, ["y"]
    )
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    x = np.array([-1, 2], np.float32)
    assert agrees(proto, {"x": x, "c": np.array(True)}) == ["Relu"]
    assert agrees(proto, {"x": x, "c": np.array(False)}) == ["Neg", "Exp"]
    with pytest.raises(NeedsValuesError, match="condition of If node 'choose'"):
        load_onnx(proto)


def typed_loop(step: object) -> None:
    """The types of a loop body's turn and conditions."""
    scalars = ((step.input[0], INT64), (step.input[1], TensorProto.BOOL))
    for info, kind in (*scalars, (step.output[0], TensorProto.BOOL)):
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, []))


def looping() -> object:
    """Doubles x until its first element is at least 100; stacks each turn's x and turn."""
    step = body(
        [
            node("Mul", "v two", "w"),
            node("Cast", "turn", "f", to=1),
            node("Add", "w f", "scan"),
            node("Gather", "w zero", "head", axis=0),
            node("Less", "head hundred", "go"),
        ],
        ["turn", "go_in", "v"],
        ["go", "w", "scan"],
    )
    typed_loop(step)
    weights = {
        "two": np.float32(2).reshape(()),
        "zero": np.array(0),
        "hundred": np.float32(100).reshape(()),
    }
    loop = node("Loop", "m _ x", "y all", name="grow", body=step)
    proto = model([loop], {"x": [2]}, ["y", "all"], weights)
    proto.graph.input.append(helper.make_tensor_value_info("m", INT64, []))
    return proto


@pytest.mark.parametrize(("start", "most", "turns"), [(30.0, 9, 2), (1.0, 3, 3), (1.0, 99, 7)])
def test_loops_are_unrolled(start: float, most: int, turns: int) -> None:
    feeds = {"x": np.array([start, 3], np.float32), "m": np.array(most)}
    assert agrees(looping(), feeds).count("Mul") == turns


def test_a_loop_of_no_turns_needs_a_declared_shape() -> None:
    feeds = {"x": np.ones(2, np.float32), "m": np.array(0)}
    with pytest.raises(UnsupportedError, match="no turns"):
        load_onnx(looping(), values=feeds)
    proto = looping()
    out = proto.graph.node[0].attribute[0].g.output[2]
    out.type.tensor_type.shape.dim.add().dim_value = 2
    agrees(proto, feeds)


@pytest.mark.parametrize("backward", [0, 1])
def test_scans_are_unrolled(backward: int) -> None:
    step = body([node("Add", "s e", "t"), node("Identity", "t", "u")], ["s", "e"], ["t", "u"])
    scan = node(
        "Scan", "x y", "last all", body=step, num_scan_inputs=1,
        scan_input_axes=[1], scan_output_axes=[-1],
        scan_input_directions=[backward], scan_output_directions=[backward],
    )  # fmt: skip
    proto = model([scan], {"x": [2], "y": [2, 3]}, ["last", "all"])
    feeds = {"x": np.ones(2, np.float32), "y": np.arange(6, dtype=np.float32).reshape(2, 3)}
    assert agrees(proto, feeds).count("Add") == 3


def test_functions_of_the_model_and_of_onnx() -> None:
    scaled = helper.make_function(
        "local", "Scaled", ["a"], ["b"],
        [helper.make_node("Elu", ["a"], ["c"]), helper.make_node("Neg", ["c"], ["b"])],
        [helper.make_opsetid("", 21)], ["alpha"],
    )  # fmt: skip
    reference = scaled.node[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "alpha", 1
    nodes = [
        node("Scaled", "x", "u", domain="local", alpha=0.5),
        node("Scaled", "u", "y", domain="local", alpha=2.0),
    ]
    proto = model(nodes, {"x": [3]}, ["y"])
    proto.functions.append(scaled)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    x = np.array([-1, 0.5, 2], np.float32)
    assert agrees(proto, {"x": x}) == ["Elu", "Neg", "Elu", "Neg"]


def test_functions_that_call_each_other_end() -> None:
    names = (("F", "G"), ("G", "F"))
    proto = model([node("F", "x", "y", domain="local")], {"x": [3]}, ["y"])
    for name, other in names:
        call = helper.make_node(other, ["a"], ["b"], domain="local")
        proto.functions.append(
            helper.make_function(
                "local", name, ["a"], ["b"], [call], [helper.make_opsetid("local", 1)]
            )
        )
    with pytest.raises(UnsupportedError, match="33 deep"):
        load_onnx(proto)


def test_old_opsets_are_converted() -> None:
    weights = {"w": np.ones((3, 4), np.float32), "b": np.arange(3, dtype=np.float32)}
    nodes = [
        node("Gemm", "x w b", "h", transB=1, broadcast=1),
        node("Add", "h b", "y", broadcast=1),
    ]
    proto = model(nodes, {"x": [2, 4]}, ["y"], weights, opset=6)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3]))
    proto.graph.input.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in weights.items()
    )
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    got = evaluate(load_onnx(proto), {"x": x})["y"]
    np.testing.assert_allclose(got, x.sum(1, keepdims=True) + 2 * weights["b"], rtol=1e-5)
    strange = model([node("Upsampling", "x", "y")], {"x": [2]}, ["y"], opset=5)
    with pytest.raises(UnsupportedError, match="opset 5 that onnx cannot convert"):
        load_onnx(strange)


def test_tensors_of_loops_have_names_of_their_own() -> None:
    constant = numpy_helper.from_array(np.ones(2, np.float32), "one")
    step = body(
        [node("Add", "v one", "w"), node("Identity", "go", "g")], ["i", "go", "v"], ["g", "w"]
    )
    step.initializer.append(constant)
    typed_loop(step)
    loop = node("Loop", "m _ x", "y", body=step)
    proto = model(
        [loop, node("Add", "y one", "z")], {"x": [2], "one": [2]}, ["z"], {"m": np.array(2)}
    )
    ones = np.ones(2, np.float32)
    assert agrees(proto, {"x": ones, "one": 5 * ones}) == ["Add", "Add", "Add"]
