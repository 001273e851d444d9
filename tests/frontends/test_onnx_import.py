"""Reading ONNX models: shapes, folding, weights, and errors a user can act on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_building import model, node, onnxruntime

from npusim.errors import GraphError, ModelError, NpusimError, UnsupportedError
from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.reference import evaluate
from npusim.ir import DType

W = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
LINEAR = [node("MatMul", "x w", "y")]


def linear(*dims: int | str) -> onnx.ModelProto:
    return model(LINEAR, {"x": list(dims)}, ["y"], {"w": W})


def message(error: type[NpusimError], *args: object, **kwargs: object) -> str:
    """The three lines of the error that load_onnx raises."""
    with pytest.raises(error) as e:
        load_onnx(*args, **kwargs)  # type: ignore[arg-type]
    text = str(e.value)
    assert [line.split(":")[0] for line in text.splitlines()] == ["error", "allowed", "fix"]
    return text


def test_symbolic_dimensions() -> None:
    proto = model([node("Add", "a b", "y")], {"a": ["batch", "seq"], "b": ["batch", "seq"]}, ["y"])
    graph = load_onnx(proto, shapes={"a": (2, 8)})  # binds b's symbols too
    assert graph.type_of("b").shape == (2, 8) == graph.type_of("y").shape
    assert load_onnx(linear("N", 4), batch=5).type_of("y").shape == (5, 3)
    text = message(ModelError, proto, batch=2)
    assert "'a'" in text and "seq" in text and "--shape a=2,N" in text
    text = message(ModelError, proto, shapes={"a": (2, 8), "b": (2, 9)})
    assert "'seq' is both 8 and 9" in text
    assert "did you mean 'a'" in message(ModelError, proto, shapes={"aa": (1, 2)})
    assert "2 extents" in message(ModelError, proto, shapes={"a": (1, 2, 3)})


def test_anonymous_and_absent_shapes() -> None:
    proto = linear("N", 4)
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert "x.dim0" in message(ModelError, proto)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert "no shape" in message(ModelError, proto)
    assert load_onnx(proto, shapes={"x": (7, 4)}).type_of("y").shape == (7, 3)


def test_question_marks_are_anonymous() -> None:
    proto = model([node("Relu", "x", "y")], {"x": [1, "?", "?"]}, ["y"])
    assert load_onnx(proto, shapes={"x": (1, 2, 3)}).type_of("y").shape == (1, 2, 3)
    assert "x.dim1, x.dim2" in message(ModelError, proto)


def test_rebatching_a_fixed_batch() -> None:
    assert load_onnx(linear(1, 4), batch=6).type_of("y").shape == (6, 3)
    fixed = model([node("Reshape", "x s", "y")], {"x": [1, 2, 2]}, ["y"], {"s": np.array([1, 4])})
    assert load_onnx(fixed, batch=1).type_of("y").shape == (1, 4)
    assert "batch 3" in message(ModelError, fixed, batch=3)
    two = model([node("Concat", "a b", "y", axis=0)], {"a": [1, 2], "b": [2, 2]}, ["y"])
    assert "different first dimensions" in message(ModelError, two, batch=4)


def test_shape_computations_fold_away() -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Constant", "", "zero", value=numpy_helper.from_array(np.array([0]))),
        node("Constant", "", "minus", value_ints=[-1]),
        node("Gather", "shape zero", "n", axis=0),
        node("Concat", "n minus", "target", axis=0),
        node("Reshape", "x target", "flat"),
        node("ConstantOfShape", "shape", "ones", value=numpy_helper.from_array(np.ones(1, "f4"))),
        node("ReduceSum", "ones", "count", keepdims=0),
        node("Add", "flat count", "y"),
    ]
    graph = load_onnx(model(nodes, {"x": [100, 64, 3]}, ["y"]))
    assert [n.op_type for n in graph.nodes] == ["Reshape", "ReduceSum", "Add"]
    assert graph.type_of("flat").shape == (100, 192)
    assert graph.constants["ones"].fill == 1.0 and set(graph.constants) == {"target", "ones"}


def test_old_ir_lists_initializers_as_inputs() -> None:
    proto = linear(2, 4)
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]))
    graph = load_onnx(proto)
    assert graph.inputs == ["x"] and list(graph.constants) == ["w"]


def test_node_names_are_unique() -> None:
    nodes = [node("Relu", "x", "a", name="n"), node("Relu", "a", "b", name="n")]
    nodes.append(node("Relu", "b", "y"))
    graph = load_onnx(model(nodes, {"x": [2]}, ["y"]))
    assert [n.name for n in graph.nodes] == ["n", "n_2", "Relu_y"]


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("raw", [True, False])
def test_half_precision_weights(kind: type, raw: bool) -> None:
    w = W.astype(kind)
    elem = helper.np_dtype_to_tensor_dtype(w.dtype)
    proto = model(LINEAR, {"x": [2, 4]}, ["y"], {"w": w}, elem=elem)
    if not raw:
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.int32_data.extend(w.view(np.uint16).reshape(-1).tolist())
    graph = load_onnx(proto)
    assert graph.constants["w"].value().tobytes() == w.tobytes()
    assert graph.type_of("y").dtype is DType.of(kind)


def test_typed_data_fields() -> None:
    for kind in ("f4", "f8", "i1", "i4", "i8", "u1", "u4", "u8", "?"):
        array = np.array([[0, 1, 1]]).astype(kind)
        elem = helper.np_dtype_to_tensor_dtype(array.dtype)
        proto = helper.make_tensor("w", elem, array.shape, array.reshape(-1).tolist())
        m = model([node("Identity", "w", "y")], {}, ["y"], elem=elem)
        m.graph.initializer.append(proto)
        got = evaluate(load_onnx(m), {})["y"]
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def test_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(
        linear(2, 4), path, save_as_external_data=True, location="m.bin", size_threshold=0
    )
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(evaluate(load_onnx(path), {"x": x})["y"], x @ W, rtol=1e-6)
    (tmp_path / "m.bin").write_bytes(b"short")
    assert "5 bytes" in message(ModelError, path)
    (tmp_path / "m.bin").unlink()
    assert "m.bin" in message(ModelError, path)
    proto = onnx.load_model(path, load_external_data=False)
    assert "in memory" in message(ModelError, proto)


def test_files_that_are_not_models(tmp_path: Path) -> None:
    assert "no file" in message(ModelError, tmp_path / "missing.onnx")
    for content in (b"version https://git-lfs.github.com/spec/v1\n", b"", b"\x08\x03\xff\xff\xff"):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        assert "m.onnx" in message(ModelError, path)
    whole = linear(2, 4).SerializeToString()
    (tmp_path / "m.onnx").write_bytes(whole[: len(whole) // 2])
    message(ModelError, tmp_path / "m.onnx")


def test_damaged_weights() -> None:
    proto = linear(2, 4)
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:8]
    with pytest.raises(ModelError, match="8 bytes for shape"):
        evaluate(load_onnx(proto), {"x": np.ones((2, 4), np.float32)})


def test_unsupported_models_name_the_node() -> None:
    foreign = node("Relu", "x", "y", name="odd", domain="com.acme")
    assert "com.acme.Relu at node 'odd'" in message(
        UnsupportedError, model([foreign], {"x": [2]}, ["y"])
    )
    lstm = node("Rellu", "x", "y", name="typo")
    text = message(UnsupportedError, model([lstm], {"x": [2]}, ["y"]))
    assert "typo" in text and "did you mean Relu" in text
    assert "opset 99" in message(UnsupportedError, model(LINEAR, {"x": [2]}, ["y"], opset=99))
    strings = model(LINEAR, {"x": [2, 4]}, ["y"], elem=TensorProto.STRING)
    assert "STRING" in message(UnsupportedError, strings)
    dynamic = model([node("Reshape", "x s", "y")], {"x": [2, 2], "s": [1]}, ["y"])
    assert "computed at run time" in message(UnsupportedError, dynamic)


def test_unsorted_nodes() -> None:
    nodes = [node("Relu", "a", "y"), node("Relu", "x", "a")]
    assert "reads 'a'" in message(GraphError, model(nodes, {"x": [2]}, ["y"]))


def test_evaluate_checks_and_keeps() -> None:
    graph = load_onnx(model([node("Relu", "x", "a"), node("Neg", "a", "y")], {"x": [2]}, ["y"]))
    x = np.array([-1, 2], np.float32)
    assert set(evaluate(graph, {"x": x}, keep=True)) == {"x", "a", "y"}
    assert evaluate(graph, {"x": x})["y"].tolist() == [0, -2]
    for wrong in ({}, {"x": x.astype(np.float64)}, {"x": x[:1]}, {"x": x, "z": x}):
        with pytest.raises(ModelError):
            evaluate(graph, wrong)


def test_optional_outputs_that_nobody_reads() -> None:
    nodes = [
        node("LayerNormalization", "x g", "n mean inverse"),
        node("Dropout", "n", "d mask"),
        node("Add", "d inverse", "y"),
    ]
    proto = model(nodes, {"x": [2, 8]}, ["y"], {"g": np.ones(8, np.float32)})
    graph = load_onnx(proto)
    assert [len(n.outputs) for n in graph.nodes] == [3, 1, 1]
    x = {"x": np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)}
    np.testing.assert_allclose(evaluate(graph, x)["y"], onnxruntime(proto, x)["y"], atol=1e-5)


def test_importing_the_frontend_does_not_import_onnx() -> None:
    code = "import sys, npusim.frontends.onnx_import, npusim.frontends.onnx_export as e; "
    code += "sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
