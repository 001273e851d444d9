"""The short Python API: load, compile, run, check, look."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim import api
from npusim.chip import load_chip
from npusim.errors import ModelError, UnsupportedError

RESNET = Path(__file__).parent / "data" / "resnet_torch_tiny.onnx"


@pytest.fixture(scope="module")
def model() -> api.LoadedModel:
    return api.load_model(str(RESNET), batch=2)


def test_the_five_lines() -> None:
    chip = npusim.load_chip("ascend910a")
    model = npusim.load_model("bert-tiny", shapes={"seq": (16,)})
    exe = npusim.compile_graph(model.graph, chip, precision="fp16")
    result = npusim.run(exe, chip, inputs=npusim.make_inputs(model))
    rows = result.timeline.to_frame()
    assert len(rows) == len(exe.tasks) and rows[0]["name"] == exe.tasks[0].name
    assert "bert-tiny" in repr(result) and "ascend910a" in repr(result) and "µs" in repr(result)


def test_results(model: api.LoadedModel) -> None:
    chip = load_chip("ascend910a")
    exe = api.compile_graph(model.graph, chip)
    result = api.run(exe, chip, inputs=api.make_inputs(model), batch=model.batch)
    assert result.batch == 2 and result.options == {"detail": "fast", "level": "operator"}
    assert result.seconds == result.timeline.total_cycles / chip.clock
    assert result.throughput == 2 / result.seconds
    assert result.flops == sum(t.flops for t in exe.tasks) > 0
    assert 0 < result.achieved_tflops * 1e12 < result.peak_flops == chip.cube_flops("float16")
    assert 0 < result.achieved_gbps * 1e9 < result.peak_hbm
    assert result.memory.peak_bytes == result.memory.weight_bytes + result.memory.activation_bytes
    assert result.outputs["logits"].dtype == np.float32 and not result.tensors


def test_timing_only_computes_nothing(model: api.LoadedModel) -> None:
    chip = load_chip("toy")
    exe = api.compile_graph(model.graph, chip)
    timed = api.run(exe, chip, timing_only=True)
    assert timed.outputs == {} and timed.options["level"] == "timing only"
    assert timed.timeline == api.run(exe, chip, inputs=api.make_inputs(model)).timeline
    with pytest.raises(UnsupportedError, match="--timing-only"):
        api.check(model, exe, timed, api.make_inputs(model))


def test_check(model: api.LoadedModel) -> None:
    chip = load_chip("ascend910a")
    exe, inputs = api.compile_graph(model.graph, chip), api.make_inputs(model)
    result = api.run(exe, chip, inputs=inputs, keep_tensors=True)
    checked = api.check(model, exe, result, inputs, every_tensor=True)
    assert checked.check_reference.startswith("onnxruntime")
    assert {"logits", "relu"} <= set(checked.check) and len(checked.check) > 3
    assert all(c.cosine > 0.9999 and c.max_rel_err < 5e-3 for c in checked.check.values())
    outputs_only = api.check(model, exe, result, inputs)
    assert set(outputs_only.check) == {"logits"}


def test_a_check_sees_wrong_numbers(model: api.LoadedModel) -> None:
    chip = load_chip("ascend910a")
    exe, inputs = api.compile_graph(model.graph, chip), api.make_inputs(model)
    result = api.run(exe, chip, inputs=inputs)
    result.outputs["logits"] = -result.outputs["logits"]
    assert api.check(model, exe, result, inputs).check["logits"].cosine < -0.9


def test_kept_tensors(model: api.LoadedModel) -> None:
    chip = load_chip("toy")
    exe, inputs = api.compile_graph(model.graph, chip), api.make_inputs(model)
    for tile_level in (False, True):
        result = api.run(exe, chip, inputs=inputs, keep_tensors=True, tile_level=tile_level)
        assert set(result.tensors) == {o for t in exe.tasks for o in t.outputs}
        np.testing.assert_array_equal(result.tensors["logits"], result.outputs["logits"])


def test_inputs_are_needed(model: api.LoadedModel) -> None:
    chip = load_chip("toy")
    exe = api.compile_graph(model.graph, chip)
    with pytest.raises(ModelError, match="is missing"):
        api.run(exe, chip)


def test_seeds(model: api.LoadedModel) -> None:
    again = api.load_model(str(RESNET), batch=2, seed=1)
    (a,), (b,) = api.make_inputs(model).values(), api.make_inputs(again).values()
    assert a.shape == b.shape and (a != b).any()
    np.testing.assert_array_equal(a, next(iter(api.make_inputs(model).values())))


# -- compare --------------------------------------------------------------------------------------


def test_compare() -> None:
    found = api.compare(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]))
    assert found.max_abs_err == 1.0 and found.max_rel_err == 0.25
    assert found.cosine == pytest.approx(17 / np.sqrt(14 * 21))
    assert api.compare(np.zeros(3), np.zeros(3)) == api.TensorCheck(0.0, 0.0, 1.0)
    assert api.compare(np.ones(3), np.zeros(3)) == api.TensorCheck(1.0, 1.0, 0.0)
    assert api.compare(np.zeros(0), np.zeros(0)).cosine == 1.0


def test_compare_what_is_not_finite() -> None:
    inf, nan = np.inf, np.nan
    same = api.compare(np.array([1.0, inf, -inf, nan]), np.array([1.0, inf, -inf, nan]))
    assert same == api.TensorCheck(0.0, 0.0, 1.0)
    for wrong in ([1.0, -inf], [1.0, 5.0], [1.0, nan]):
        found = api.compare(np.array(wrong), np.array([1.0, inf]))
        assert found.max_abs_err == inf and found.cosine == 0.0
