"""A model as quantisation tools write MobileNet: nothing of it is left to the AI CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_building import model, node, onnxruntime

from npusim import api
from npusim.chip import load_chip
from npusim.cli import main
from npusim.model_check import check_model

#: Inverted residuals: filters, stride.
BLOCKS = ((24, 2), (24, 1), (40, 2))


class _Writer:
    """QLinearConv after QLinearConv."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {
            "s": np.float32(0.05), "z": np.uint8(128), "wz": np.int8(0),
        }  # fmt: skip

    def conv(self, x: str, ci: int, co: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        """A convolution; each channel with its scale."""
        name, taps = f"c{len(self.nodes)}", kernel * kernel * ci // group
        shape = (co, ci // group, kernel, kernel)
        self.weights[f"{name}.w"] = self.rng.integers(-127, 128, shape).astype(np.int8)
        scales = self.rng.uniform(0.5, 1.5, co) / 70 / taps**0.5
        self.weights[f"{name}.s"] = scales.astype(np.float32)
        self.weights[f"{name}.b"] = self.rng.integers(-500, 500, co).astype(np.int32)
        operands = f"{x} s z {name}.w {name}.s wz s z {name}.b"
        attrs = {"group": group, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        self.nodes.append(node("QLinearConv", operands, name, name=name, **attrs))
        return name

    def model(self) -> onnx.ModelProto:
        """Quantised at the beginning, real at the end."""
        self.nodes.append(node("QuantizeLinear", "x s z", "q"))
        y, width = self.conv("q", 3, 32, 3, 2), 32
        for co, stride in BLOCKS:
            wide = self.conv(y, width, 4 * width, 1)
            wide = self.conv(wide, 4 * width, 4 * width, 3, stride, 4 * width)
            y, width = self.conv(wide, 4 * width, co, 1), co
        self.nodes.append(node("DequantizeLinear", f"{y} s z", "y"))
        return model(self.nodes, {"x": [1, 3, 32, 32]}, ["y"], self.weights)


@pytest.fixture(scope="module")
def proto() -> onnx.ModelProto:
    return _Writer().model()


@pytest.mark.parametrize("name", ["ascend910a", "ascend910b2", "ascend310p3"])
def test_all_of_it_runs_on_cores(name: str, proto: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "mobile.onnx"
    onnx.save(proto, path)
    found = check_model(str(path), load_chip(name))
    assert found.passed and found.shares()["AI CPU"][0] == 0
    assert main(["check", str(path), "--chip", name]) == 0


def test_it_computes_what_onnxruntime_does(proto: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "mobile.onnx"
    onnx.save(proto, path)
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    (want,) = onnxruntime(proto, {"x": x}).values()
    loaded = api.load_model(str(path))
    for name in ("ascend910a", "ascend910b2"):
        chip = load_chip(name)
        exe = api.compile_graph(loaded.graph, chip, precision="fp32")
        y = api.run(exe, chip, inputs={"x": x}).outputs["y"]
        assert np.ptp(want) > 4
        assert np.abs(y - want).max() <= 0.101  # two steps: a tie may have fallen the other way
        assert np.mean(y == want) > 0.99
