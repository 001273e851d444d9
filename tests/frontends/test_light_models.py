"""The nine small-file models that ship with onnx, against their shipped outputs."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.reference import evaluate

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
MODELS = sorted(p.stem for p in LIGHT.glob("*.onnx"))


def test_all_nine_are_here() -> None:
    assert len(MODELS) == 9


@pytest.mark.parametrize("model", MODELS)
def test_light_model(model: str) -> None:
    graph = load_onnx(LIGHT / f"{model}.onnx")
    (name,) = graph.inputs
    t = graph.type_of(name)
    x = (np.arange(t.size, dtype=np.float32) / t.size).reshape(t.shape)
    (y,) = evaluate(graph, {name: x}).values()
    want = numpy_helper.to_array(onnx.load_tensor(LIGHT / f"{model}_output_0.pb"))
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-5)
    gc.collect()


def test_weights_stay_unmade() -> None:
    """A timing-only run must not allocate weights: they are fills, or read on demand."""
    graph = load_onnx(LIGHT / "light_vgg19.onnx")
    large = [c for c in graph.constants.values() if c.type.size > 4096]
    assert len(large) >= 18 and all(c.fill is not None for c in large)
    folded = {"ConstantOfShape", "Constant", "Shape"}
    assert folded.isdisjoint(n.op_type for n in graph.nodes)
