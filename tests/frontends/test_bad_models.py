"""Models that are damaged or mean harm: three lines, bounded time and memory, no file read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_building import model, node

from npusim.chip import load_chip
from npusim.compiler import CompileOptions, compile_graph
from npusim.errors import GraphError, ModelError, NpusimError, UnsupportedError
from npusim.frontends.onnx_import import load_onnx, survey_onnx
from npusim.machine.arena import Arena

CHIP = load_chip("ascend910a")
ONES = {"one": np.ones(1, np.float32)}


def tensor(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


V = tensor([0, 1])


@pytest.mark.parametrize("dims", [[2**40], [2**62, 2**62], [1] * 65, [2**20, 2**20, 4]])
def test_gigantic_inputs(dims: list[int]) -> None:
    with pytest.raises(UnsupportedError, match=r"input 'x' has \d+ bytes"):
        load_onnx(model([node("Relu", "x", "y")], {"x": dims}, ["y"]))


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        ([node("ConstantOfShape", "s", "y")], {"s": tensor([2**40, 2**20])}),
        ([node("Expand", "one s", "y")], {"s": tensor([2**41])}),
        ([node("Tile", "one s", "y")], {"s": tensor([2**62])}),
        ([node("OneHot", "i s v", "y")], {"i": tensor([0]), "s": tensor(2**50), "v": V}),
        ([node("Range", "a s d", "y")], {"a": tensor(0), "s": tensor(2**60), "d": tensor(1)}),
    ],
)  # fmt: skip
def test_results_that_are_too_large(nodes: list, weights: dict[str, np.ndarray]) -> None:
    with pytest.raises(UnsupportedError, match="at most 1099511627776 bytes"):
        load_onnx(model(nodes, {"x": [1]}, ["y"], {**ONES, **weights}))


def bomb(n: int) -> onnx.ModelProto:
    """One number, tiled by 1024 `n` times, and summed up again."""
    nodes = [node("Tile", f"{'one' if i == 0 else f't{i - 1}'} s", f"t{i}") for i in range(n)]
    nodes += [node("ReduceSum", f"t{n - 1}", "sum", keepdims=1), node("Add", "x sum", "y")]
    return model(nodes, {"x": [1]}, ["y"], {**ONES, "s": tensor([1024])})


def test_bombs_are_not_folded() -> None:
    exe = compile_graph(load_onnx(bomb(2)), CHIP, CompileOptions())
    assert sum(c.type.size for c in exe.constants.values()) <= 2 * 2**20
    with pytest.raises(UnsupportedError, match="at most 1099511627776 bytes"):
        load_onnx(bomb(4))
    big = compile_graph(
        load_onnx(bomb(3)), CHIP, CompileOptions()
    )  # 2 GiB of fp16: planned, not computed
    assert sum(c.type.size for c in big.constants.values()) <= 2 * 2**20


def test_folds_that_share_operands_take_linear_time() -> None:
    nodes = [node("Add", f"a{i} a{i}", f"a{i + 1}") for i in range(60)]
    w = np.full(5000, 2.0**-60, np.float32)
    graph = load_onnx(model([*nodes, node("Mul", "x a60", "y")], {"x": [5000]}, ["y"], {"a0": w}))
    exe = compile_graph(graph, CHIP, CompileOptions("fp32"))
    (value,) = [c.value() for c in exe.constants.values() if c.type.size == 5000]
    assert (value == 1).all()


def test_more_memory_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_onnx(model([node("Relu", "x", "y")], {"x": [2048]}, ["y"]))
    exe = compile_graph(graph, CHIP, CompileOptions())
    monkeypatch.setattr("npusim.limits.host_bytes", lambda: 1024)
    with pytest.raises(ModelError, match="--timing-only"):
        Arena(exe)


def loop(body: list, trips: int) -> onnx.NodeProto:
    infos = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    out = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(body, "body", infos, [out])
    return helper.make_node("Loop", ["m", ""], [], body=graph, name=f"loop{trips}")


def test_loops_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.frontends.onnx_importer.MOST_NODES", 3000)
    endless = loop([], 0)
    endless.input[0] = ""
    for node_, weights in (
        (endless, {}),
        (loop([loop([loop([], 3)], 2)], 1), {"m": tensor(2**30)}),
    ):
        with pytest.raises(UnsupportedError, match="more than 3000 nodes, loops unrolled"):
            load_onnx(model([node_, node("Relu", "x", "y")], {"x": [1]}, ["y"], weights))


def test_bodies_that_are_too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.frontends.onnx_scope.DEEPEST", 8)
    inner = node("Relu", "x", "r")
    for i in range(12):
        out = [helper.make_tensor_value_info(inner.output[0], TensorProto.FLOAT, None)]
        taken = helper.make_graph([inner], "taken", [], out)
        other = helper.make_graph([], "other", [], out)
        inner = node("If", "c", f"r{i}", then_branch=taken, else_branch=other)
    proto = model([inner], {"x": [1]}, [inner.output[0]], {"c": np.array(True)})
    with pytest.raises(UnsupportedError, match="9 deep"):
        load_onnx(proto)


@pytest.mark.parametrize(
    "bad",
    [
        node("Transpose", "x", "y", perm="abc"),
        node("Transpose", "x", "y", perm=[0, 7]),
        node("Concat", "x x", "y", axis="1"),
        node("Conv", "x", "y"),
        node("Conv", "x x", "y", group=0),
        node("Gather", "x", "y", axis=2**62),
        node("MaxPool", "x", "y", kernel_shape=[0, 0], strides=[0, 0]),
        node("Clip", "x x x x x x", "y"),
        node("Cast", "x", "y", to=99),
        node("Reshape", "x", "y"),
        node("Constant", "", "y", value_ints=["a"]),
        node("If", "x", "y"),
        node("Loop", "", "y"),
        node("Scan", "x", "y", num_scan_inputs=9),
    ],
)
def test_malformed_nodes(bad: onnx.NodeProto) -> None:
    proto = model([bad], {"x": [2, 3, 4, 4]}, ["y"])
    with pytest.raises(NpusimError) as e:
        load_onnx(proto)
    assert len(str(e.value).splitlines()) == 3
    _, problems = survey_onnx(proto)
    assert len(problems) == 1


def test_cycles_and_twins() -> None:
    cycle = [node("Add", "x b", "a"), node("Relu", "a", "b")]
    with pytest.raises(GraphError, match="reads 'b', which nothing made before"):
        load_onnx(model(cycle, {"x": [2]}, ["b"]))
    twins = [node("Relu", "x", "a"), node("Neg", "x", "a")]
    with pytest.raises(GraphError, match="is made twice"):
        load_onnx(model(twins, {"x": [2]}, ["a"]))
    with pytest.raises(GraphError, match="is made twice"):
        load_onnx(model([node("Neg", "x", "x")], {"x": [2]}, ["x"]))


SECRET = np.arange(8, dtype=np.float32)


def external(folder: Path, **entries: Any) -> Path:
    """A model in `folder` whose weight lies in a file."""
    proto = model([node("Add", "x w", "y")], {"x": [8]}, ["y"])
    weight = TensorProto(name="w", dims=[8], data_type=1, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        weight.external_data.add(key=key, value=str(value))
    proto.graph.initializer.append(weight)
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(proto, path)
    return path


def test_weights_outside_the_model_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(SECRET.tobytes())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.bin").write_bytes(SECRET.tobytes())
    for i, location in enumerate(
        ("../secret.bin", str(secret), "sub/../../secret.bin", "link", "way/secret.bin")
    ):
        path = external(tmp_path / f"m{i}", location=location)
        (path.parent / "link").symlink_to(secret)
        (path.parent / "way").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ModelError, match="outside the model's directory"):
            load_onnx(path)


def test_weights_beside_the_model_may_be_links(tmp_path: Path) -> None:
    path = external(tmp_path / "m", location="link")
    (path.parent / "w.bin").write_bytes(SECRET.tobytes())
    (path.parent / "link").symlink_to("w.bin")
    assert load_onnx(path).constants["w"].value().tolist() == SECRET.tolist()


@pytest.mark.parametrize("location", ["", ".", "/dev/zero", "fifo", "m.onnx\0", "x" * 5000])
def test_files_that_are_none(tmp_path: Path, location: str) -> None:
    import os

    path = external(tmp_path / "m", location=location)
    os.mkfifo(path.parent / "fifo")
    with pytest.raises(ModelError):
        load_onnx(path)


@pytest.mark.parametrize("offset", ["-4", "x", "1e3", str(2**70)])
def test_offsets_that_are_none(tmp_path: Path, offset: str) -> None:
    path = external(tmp_path / "m", location="w.bin", offset=offset)
    (path.parent / "w.bin").write_bytes(SECRET.tobytes())
    with pytest.raises(ModelError):
        load_onnx(path)
