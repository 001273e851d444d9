"""A model with its own test data is checked against that, without onnxruntime."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npusim import api
from npusim.errors import ModelError

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.fixture
def zoo_model(tmp_path: Path) -> Path:
    """light_squeezenet in the layout of the ONNX model zoo."""
    path = tmp_path / "model.onnx"
    shutil.copy(LIGHT / "light_squeezenet.onnx", path)
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    x = (np.arange(150528, dtype=np.float32) / 150528).reshape(1, 3, 224, 224)
    onnx.save_tensor(numpy_helper.from_array(x), str(folder / "input_0.pb"))
    shutil.copy(LIGHT / "light_squeezenet_output_0.pb", folder / "output_0.pb")
    return path


def test_expected_outputs_are_the_reference(zoo_model: Path) -> None:
    model = api.load_model(str(zoo_model))
    chip = api.load_chip("ascend910b2")
    exe = api.compile_graph(model.graph, chip, precision="fp32")
    inputs = api.make_inputs(model)
    result = api.check(model, exe, api.run(exe, chip, inputs=inputs), inputs)
    assert result.check_reference == "test_data_set_0 of the model"
    assert all(c.max_rel_err < 1e-4 for c in result.check.values())


def test_other_inputs_are_checked_by_onnxruntime(zoo_model: Path) -> None:
    model = api.load_model(str(zoo_model))
    chip = api.load_chip("ascend910b2")
    exe = api.compile_graph(model.graph, chip, precision="fp32")
    inputs = {k: v + 1 for k, v in api.make_inputs(model).items()}
    result = api.check(model, exe, api.run(exe, chip, inputs=inputs), inputs)
    assert result.check_reference.startswith("onnxruntime")


def test_corrupt_data_is_a_clear_error(zoo_model: Path) -> None:
    (zoo_model.parent / "test_data_set_0" / "input_0.pb").write_bytes(b"\xff" * 40)
    with pytest.raises(ModelError, match=r"input_0\.pb"):
        api.make_inputs(api.load_model(str(zoo_model)))
