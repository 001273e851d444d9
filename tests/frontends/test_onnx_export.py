"""Graphs back to ONNX: checked by onnx, run by onnxruntime, read again by npusim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_building import model, node, onnxruntime

from npusim.errors import UnsupportedError
from npusim.frontends import onnx_export
from npusim.frontends.onnx_export import save_onnx, to_onnx
from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.reference import evaluate
from npusim.ir import EpilogueStep, Graph, format_graph

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {i: rng.random(graph.type_of(i).shape, np.float32) for i in graph.inputs}


def small() -> Graph:
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Clip", "c _ six", "r"),
        node("Cast", "r", "h", to=10),
        node("Cast", "h", "f", to=1),
        node("RMSNormalization", "f g", "n", axis=1),
        node("Softmax", "n", "y"),
    ]
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "six": np.array(6, np.float32),
        "g": rng.normal(size=(4, 8, 8)).astype(np.float32),
    }
    return load_onnx(model(nodes, {"x": [2, 3, 8, 8]}, ["y"], weights, opset=23))


@pytest.mark.parametrize("name", ["shufflenet", "squeezenet"])
def test_light_models_round_trip(name: str) -> None:
    graph = load_onnx(LIGHT / f"light_{name}.onnx")
    proto = to_onnx(graph)
    onnx.checker.check_model(proto, full_check=True)
    assert format_graph(load_onnx(proto)) == format_graph(graph)
    x = feeds(graph)
    (want,), (got,) = onnxruntime(proto, x).values(), evaluate(graph, x).values()
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


def test_attributes_absent_inputs_and_newer_operators() -> None:
    graph = small()
    proto = to_onnx(graph)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version == 23  # RMSNormalization
    assert format_graph(load_onnx(proto)) == format_graph(graph)
    x = feeds(graph)
    np.testing.assert_allclose(
        evaluate(graph, x)["y"], onnxruntime(proto, x)["y"], rtol=2e-3, atol=1e-5
    )


def test_many_weights_go_to_their_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small()
    monkeypatch.setattr(onnx_export, "INLINE_LIMIT", 100)
    monkeypatch.setattr(onnx_export, "_SMALLEST_EXTERNAL", 8)
    with pytest.raises(UnsupportedError, match="bytes of weights"):
        to_onnx(graph)
    path = tmp_path / "m.onnx"
    save_onnx(graph, path)
    assert (tmp_path / "m.onnx.data").stat().st_size == (4 * 27 + 4 * 64) * 4
    onnx.checker.check_model(str(path))
    again, x = load_onnx(path), feeds(graph)
    np.testing.assert_array_equal(evaluate(again, x)["y"], evaluate(graph, x)["y"])


def test_compiled_graphs_are_refused() -> None:
    graph = small()
    graph.nodes[0] = graph.nodes[0].with_(epilogue=(EpilogueStep("Relu"),))
    with pytest.raises(UnsupportedError, match="epilogue"):
        to_onnx(graph)
    graph.nodes[0] = graph.nodes[0].with_(op_type="TransData", epilogue=())
    with pytest.raises(UnsupportedError, match="TransData"):
        to_onnx(graph)
