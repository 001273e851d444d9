"""`npusim check`, and inputs that shapes follow from on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx_building import model, node

from npusim import api
from npusim.chip import load_chip
from npusim.cli import main
from npusim.errors import NeedsValuesError
from npusim.model_check import check_model


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    """Three kinds of trouble, and what follows from them."""
    nodes = [
        node("Conv", "x w", "a", name="conv"),
        node("Convv", "a", "b", name="typo"),
        node("Relu", "b", "c", name="behind"),
        node("Einsteinsum", "c", "d", name="behind too"),
        node("Reshape", "a s", "e", name="open"),
        node("Det", "a", "f", name="on the AI CPU"),
    ]
    w = {"w": np.ones((8, 3, 3, 3), np.float32)}
    proto = model(nodes, {"x": [1, 3, 16, 16], "s": [2]}, ["d", "e", "f"], w)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    path = tmp_path / "mixed.onnx"
    onnx.save(proto, path)
    return str(path)


def test_every_unsupported_node_is_listed(mixed: str, capsys: pytest.CaptureFixture) -> None:
    found = check_model(mixed, load_chip("ascend910a"))
    assert [p.name for p in found.problems] == ["typo", "behind too", "open"]
    assert {p.opset for p in found.problems} == {21}
    assert found.nodes == 2 and not found.passed
    shares = found.shares()
    assert shares["AI CPU"][0] == 1 and shares["AI Core"][0] >= 1
    assert sum(s[1] for s in shares.values()) > 2 * 8 * 27 * 14 * 14
    assert main(["check", mixed]) == 1
    out = capsys.readouterr().out
    assert "3 nodes cannot be run" in out and "did you mean Conv?" in " ".join(out.split())
    assert "AI CPU" in out and max(map(len, out.splitlines())) <= 100


def test_values_given_count(mixed: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["check", mixed, "--input", "s=8,-1"]) == 1
    assert "2 nodes cannot be run" in capsys.readouterr().out


def test_a_run_lists_them_too(mixed: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["run", mixed]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["error", "allowed", "fix"]
    assert "2 nodes cannot be run, the first: operator 'Convv'" in lines[0]
    assert any("behind too" in line for line in lines[3:])


def test_a_model_that_can_be_run(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", "bert-tiny", "--chip", "ascend910b2"]) == 0
    assert "all nodes" in capsys.readouterr().out


def test_what_the_compiler_refuses(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", "gemm-8192", "--set", "hbm.size=64MiB"]) == 1
    assert "error:" in capsys.readouterr().out


@pytest.fixture
def reshaping(tmp_path: Path) -> str:
    proto = model([node("Reshape", "x s", "y")], {"x": [2, 4], "s": [2]}, ["y"])
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    path = tmp_path / "reshaping.onnx"
    onnx.save(proto, path)
    return str(path)


def test_inputs_that_shapes_follow_from(reshaping: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["run", reshaping, "-q"]) == 2
    assert "--input NAME=1,2,3" in capsys.readouterr().err
    assert main(["run", reshaping, "-q", "--input", "s=8,1", "--check"]) == 0
    for wrong, why in (("q=1", "no input 'q'"), ("s=1,b", "not a list"), ("s=x.npy", "be read")):
        assert main(["run", reshaping, "-q", "--input", wrong]) == 2
        assert why in capsys.readouterr().err


def test_inputs_from_files_and_beside_the_model(reshaping: str) -> None:
    folder = Path(reshaping).parent
    np.save(folder / "x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    assert main(["run", reshaping, "-q", "--input", "s=4,2", "--input", f"x={folder}/x.npy"]) == 0
    with pytest.raises(NeedsValuesError):
        api.load_model(reshaping)
    data = folder / "test_data_set_0"
    data.mkdir()
    arrays = {"input_0": np.ones((2, 4), np.float32), "input_1": np.array([1, 8])}
    arrays["output_0"] = np.ones((1, 8), np.float32)
    for name, array in arrays.items():
        (data / f"{name}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    loaded = api.load_model(reshaping)
    assert loaded.graph.type_of("y").shape == (1, 8)
    assert api.make_inputs(loaded)["s"].tolist() == [1, 8]
