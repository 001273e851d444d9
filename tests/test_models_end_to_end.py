"""Real models through the whole chain: load, compile, run, compare; on many chips, both levels."""

from __future__ import annotations

import functools
import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npusim import api
from npusim.chip import load_chip
from npusim.data import data_dir
from npusim.frontends.check import reference_values
from npusim.program.executable import Executable, TaskKind

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
MODELS = sorted(p.stem for p in LIGHT.glob("*.onnx"))
CHIPS = sorted(p.stem for p in data_dir("configs/chips").glob("*.yaml"))
TORCH = Path(__file__).parent / "data"

#: Largest difference of the two levels, over a tensor's largest value.
LEVELS = {"fp32": 1e-4, "fp16": 4e-3, "bf16": 3e-2}


@functools.cache
def _light(name: str) -> api.LoadedModel:
    return api.load_model(str(LIGHT / f"{name}.onnx"))


@functools.cache
def _small(name: str) -> api.LoadedModel:
    """A model that tile level runs in a second."""
    if name == "resnet18":
        return api.load_model(name, shapes={"input": (1, 3, 64, 64)})
    if name == "bert-tiny":
        return api.load_model(name, shapes={"seq": (32,)})
    if name == "light_squeezenet":
        return _light(name)
    return api.load_model(str(TORCH / f"{name}.onnx"), batch=2)


def _ai_cpu(exe: Executable) -> dict[str, str]:
    return {t.name: t.op_type for t in exe.tasks if t.kind is TaskKind.AI_CPU}


# -- the nine light models ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chip", "precision"),
    [("ascend910a", "fp16"), ("ascend910b2", "fp16"), ("ascend910b2", "fp32"),
     ("ascend910a", "fp32")],
)  # fmt: skip
@pytest.mark.parametrize("name", MODELS)
def test_light_model(name: str, chip: str, precision: str) -> None:
    model, spec = _light(name), load_chip(chip)
    exe = api.compile_graph(model.graph, spec, precision=precision)
    assert not _ai_cpu(exe)
    (entry,) = model.graph.inputs
    t = model.graph.type_of(entry)
    x = (np.arange(t.size, dtype=np.float32) / t.size).reshape(t.shape)
    (y,) = api.run(exe, spec, inputs={entry: x}).outputs.values()
    want = numpy_helper.to_array(onnx.load_tensor(LIGHT / f"{name}_output_0.pb"))
    found = api.compare(y, want)
    if precision == "fp32":
        assert found.max_rel_err < 1e-4
    else:
        assert found.cosine >= 0.999
        if np.ptp(want) > 1e-3 * np.abs(want).max():
            assert y.argmax() == want.argmax()
    gc.collect()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", MODELS)
def test_light_models_on_every_chip(name: str, chip: str) -> None:
    spec = load_chip(chip)
    exe = api.compile_graph(_light(name).graph, spec, precision="fp16")
    left = set(_ai_cpu(exe).values())
    assert not left or (chip == "toy" and left == {"Conv"})  # first rows wider than its L1
    timeline = api.run(exe, spec, timing_only=True).timeline
    assert len(timeline.ops) == len(exe.tasks) and timeline.total_cycles > 0


# -- against onnxruntime, with random or trained weights ------------------------------------------


@pytest.mark.parametrize(
    ("chip", "precision", "cosine"),
    [("ascend910a", "fp16", 0.9999), ("ascend910b2", "bf16", 0.999), ("ascend910b2", "fp32", 1),
     ("ascend910a", "fp32", 1)],
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["resnet50", "resnet18", "bert-tiny", "bert_torch_tiny", "resnet_torch_tiny"]
)
def test_against_onnxruntime(name: str, chip: str, precision: str, cosine: float) -> None:
    model = api.load_model("resnet50") if name == "resnet50" else _small(name)
    spec, inputs = load_chip(chip), api.make_inputs(model)
    exe = api.compile_graph(model.graph, spec, precision=precision)
    assert set(_ai_cpu(exe).values()) <= {"Cast"}  # of the int64 attention mask
    outputs = api.run(exe, spec, inputs=inputs).outputs
    reference, _ = reference_values(model.graph, model.onnx_path, inputs, model.graph.outputs)
    assert set(reference) == set(outputs)
    for o, want in reference.items():
        found = api.compare(outputs[o], want)
        assert found.cosine >= cosine - 1e-9
        if precision == "fp32":
            assert found.max_rel_err < 1e-4
        if name.startswith("resnet"):
            np.testing.assert_array_equal(outputs[o].argmax(-1), want.argmax(-1))


# -- tile level -----------------------------------------------------------------------------------


WHOLE = ("resnet18", "bert-tiny", "bert_torch_tiny", "resnet_torch_tiny")
RUNS = [("toy", "fp16"), ("ascend910a", "fp16"), ("ascend910b2", "fp16"), ("ascend910b2", "bf16"),
        ("ascend910b2", "fp32")]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "chip", "precision"),
    [(name, *run) for name in WHOLE for run in RUNS] + [("light_squeezenet", "ascend910a", "fp16")],
)
def test_levels_agree(name: str, chip: str, precision: str) -> None:
    """Every task's outputs; in both runs a task reads what its own level made before it."""
    model, spec = _small(name), load_chip(chip)
    inputs = api.make_inputs(model)
    exe = api.compile_graph(model.graph, spec, precision=precision)
    operator = api.run(exe, spec, inputs=inputs, keep_tensors=True)
    tile = api.run(exe, spec, inputs=inputs, keep_tensors=True, tile_level=True)
    assert tile.timeline == operator.timeline
    for task in exe.tasks:
        for name in task.outputs:
            found = api.compare(tile.tensors[name], operator.tensors[name])
            assert found.max_rel_err < LEVELS[precision], (task.name, task.op_type, found)
