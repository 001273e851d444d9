"""`acl.mdl`: models from files, names and memory, and samples as they are."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npusim.acl as acl
from npusim.frontends.onnx_export import save_onnx
from npusim.ir import DType
from npusim.models.builder import GraphBuilder

Start = Callable[..., None]
SAMPLES = Path(__file__).parents[1] / "data" / "pyacl"
SHAPE = (64, 96)


def ok(result: tuple[int, int]) -> int:
    """The value of a call that succeeded."""
    assert result[1] == 0, acl.get_recent_err_msg()
    return result[0]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An ONNX file: y = softmax(relu(x) · w), in fp32, and z = relu(x)."""
    g = GraphBuilder("two", DType.FLOAT32)
    x, w = g.input("x", SHAPE), g.weight("w", (96, 32), 0.1)
    z = g.node("Relu", "relu", x, out="z")
    g.output(g.node("Softmax", "softmax", g.node("MatMul", "mm", z, w), out="y", axis=-1), z)
    path = tmp_path / "two.onnx"
    save_onnx(g.finish(), path)
    return path


def dataset(arrays: list[np.ndarray], filled: bool) -> int:
    """A data set of device memory for arrays, with their values where `filled`."""
    made = acl.mdl.create_dataset()
    for array in arrays:
        ptr = ok(acl.rt.malloc(array.nbytes, 0))
        if filled:
            assert acl.rt.memcpy(ptr, array.nbytes, array.ctypes.data, array.nbytes, 1) == 0
        buffer = acl.create_data_buffer(ptr, array.nbytes)
        assert acl.mdl.add_dataset_buffer(made, buffer) == (made, 0)
    return made


def fetch(made: int, arrays: list[np.ndarray]) -> None:
    """The values of a data set's memory, into arrays."""
    for i, array in enumerate(arrays):
        ptr = acl.get_data_buffer_addr(acl.mdl.get_dataset_buffer(made, i))
        assert acl.rt.memcpy(array.ctypes.data, array.nbytes, ptr, array.nbytes, 2) == 0


def reference(path: Path, x: np.ndarray) -> list[np.ndarray]:
    """onnxruntime's outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def test_a_model_file_is_described_and_run(start: Start, model: Path) -> None:
    start()
    number = ok(acl.mdl.load_from_file(str(model)))
    desc = acl.mdl.create_desc()
    assert acl.mdl.get_desc(desc, number) == 0
    assert (acl.mdl.get_num_inputs(desc), acl.mdl.get_num_outputs(desc)) == (1, 2)
    assert acl.mdl.get_input_dims(desc, 0) == ({"name": "x", "dimCount": 2, "dims": [64, 96]}, 0)
    assert acl.mdl.get_input_dims_v2(desc, 0) == acl.mdl.get_input_dims(desc, 0)
    assert acl.mdl.get_output_dims(desc, 0)[0]["dims"] == [64, 32]
    assert acl.mdl.get_cur_output_dims(desc, 1)[0]["name"] == "z"
    assert acl.mdl.get_input_size_by_index(desc, 0) == 64 * 96 * 4
    assert acl.mdl.get_output_size_by_index(desc, 0) == 64 * 32 * 4
    assert acl.mdl.get_input_data_type(desc, 0) == acl.mdl.get_output_data_type(desc, 0) == 0
    assert acl.mdl.get_input_format(desc, 0) == acl.mdl.get_output_format(desc, 1) == 2
    assert acl.mdl.get_input_name_by_index(desc, 0) == "x"
    assert acl.mdl.get_output_name_by_index(desc, 1) == "z"
    assert acl.mdl.get_input_index_by_name(desc, "x") == (0, 0)
    assert acl.mdl.get_output_index_by_name(desc, "z") == (1, 0)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    outputs = [np.empty((64, 32), np.float32), np.empty(SHAPE, np.float32)]
    inputs, targets = dataset([x], True), dataset(outputs, False)
    assert acl.mdl.get_dataset_num_buffers(targets) == 2
    assert acl.mdl.execute(number, inputs, targets) == 0
    fetch(targets, outputs)
    for found, expected in zip(outputs, reference(model, x), strict=True):
        assert np.abs(found - expected).max() < 2e-3
    assert acl.mdl.destroy_dataset(inputs) == 0 == acl.mdl.destroy_desc(desc)
    assert acl.mdl.unload(number) == 0
    assert acl.mdl.unload(number) == 100011


def test_models_come_from_memory_names_and_other_suffixes(start: Start, model: Path) -> None:
    start()
    content = model.read_bytes()
    ptr = acl.util.bytes_to_ptr(content)
    first = ok(acl.mdl.load_from_mem(ptr, len(content)))
    renamed = model.with_suffix(".om")
    renamed.write_bytes(content)
    second = ok(acl.mdl.load_from_file(str(renamed)))
    assert second == first + 1
    ok(acl.mdl.load_from_file("relu"))
    work, weights, ret = acl.mdl.query_size(str(model))
    assert ret == 0 and work > 0 and weights >= 96 * 32 * 2


def test_weights_are_seen_in_the_memory_s_info(start: Start, model: Path) -> None:
    start()
    free, _, _ = acl.rt.get_mem_info(1)
    number = ok(acl.mdl.load_from_file(str(model)))
    assert free - acl.rt.get_mem_info(1)[0] >= 96 * 32 * 2
    acl.mdl.unload(number)
    assert acl.rt.get_mem_info(1)[0] == free


def test_what_cannot_be_loaded_says_why(start: Start, tmp_path: Path) -> None:
    start()
    bad = tmp_path / "atc.om"
    bad.write_bytes(b"IMOD" + bytes(100))
    assert acl.mdl.load_from_file(str(bad)) == (0, 100006)
    assert "atc.om is no ONNX model" in (acl.get_recent_err_msg() or "")
    assert acl.mdl.load_from_file(str(tmp_path / "none.om")) == (0, 100003)
    assert acl.mdl.load_from_file("resnet5O") == (0, 500002)
    assert "did you mean resnet50" in (acl.get_recent_err_msg() or "")
    data = ctypes.create_string_buffer(b"nothing at all")
    assert acl.mdl.load_from_mem(ctypes.addressof(data), 14) == (0, 100006)
    assert acl.mdl.query_size("none")[2] == 500002


def test_runs_that_do_not_fit_say_why(start: Start, model: Path) -> None:
    start()
    number = ok(acl.mdl.load_from_file(str(model)))
    x, y, z = np.zeros(SHAPE, np.float32), np.zeros((64, 32), np.float32), np.zeros(SHAPE, "f4")
    good, outs = dataset([x], True), dataset([y, z], False)
    assert acl.mdl.execute(number, dataset([y], True), outs) == 100017
    assert "8192 B for 'x'" in (acl.get_recent_err_msg() or "")
    assert acl.mdl.execute(number, good, dataset([y, y], False)) == 100018
    assert acl.mdl.execute(number, good, good) == 100018
    assert acl.mdl.execute(number + 9, good, outs) == 100011
    assert acl.mdl.execute_async(number, good, outs + 1, 0) == 107017
    desc = acl.mdl.create_desc()
    acl.mdl.get_desc(desc, number)
    assert acl.mdl.get_input_size_by_index(desc, 1) == 0
    assert acl.mdl.get_output_dims(desc, 2) == ({}, 100000)
    assert acl.mdl.get_input_index_by_name(desc, "q") == (0, 100000)
    assert acl.mdl.get_dataset_buffer(good, 1) == 0


def test_a_model_on_freed_memory_fails_at_synchronisation(start: Start, model: Path) -> None:
    start()
    number, stream = ok(acl.mdl.load_from_file(str(model))), ok(acl.rt.create_stream())
    x, y, z = np.zeros(SHAPE, np.float32), np.zeros((64, 32), np.float32), np.zeros(SHAPE, "f4")
    inputs, outputs = dataset([x], True), dataset([y, z], False)
    acl.rt.free(acl.get_data_buffer_addr(acl.mdl.get_dataset_buffer(inputs, 0)))
    assert acl.mdl.execute_async(number, inputs, outputs, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 507015
    assert "freed" in (acl.get_recent_err_msg() or "")


# -- samples, with their import changed ------------------------------------------------------------


def sample(name: str) -> types.ModuleType:
    """A sample; the one change is its import."""
    text = (SAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert text.count("import acl\n") == 1
    module = types.ModuleType(name)
    exec(text.replace("import acl\n", "import npusim.acl as acl\n"), module.__dict__)
    return module


@pytest.mark.parametrize("interval", [1, 2])
def test_asynchronous_inference_with_callbacks(
    model: Path, interval: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(4)]
    net = sample("async_callback").Net(str(model), callback_interval=interval)
    net.run(inputs)
    expected = [value for x in inputs for value in reference(model, x)]
    assert len(net.results) == len(expected) == 8
    for found, wanted in zip(net.results, expected, strict=True):
        assert np.abs(found - wanted).max() < 2e-3
    net.release_resource()
    assert not caplog.records  # nothing leaked


def test_copy_compute_copy_over_three_streams(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Right numbers, every stage overlapping the next, and nothing left."""
    g = GraphBuilder("images", DType.FLOAT16)
    g.output(g.node("Softmax", "softmax", g.input("x", (1024, 512)), out="y", axis=-1))
    path = tmp_path / "images.onnx"
    save_onnx(g.finish(), path)
    rng = np.random.default_rng(0)
    pieces = [rng.standard_normal((1024, 512)).astype(np.float16) for _ in range(6)]
    pipeline = sample("three_streams").Pipeline(str(path))
    results = pipeline.run(pieces)
    timeline = acl.timeline()
    assert timeline is not None
    for piece, result in zip(pieces, results, strict=True):
        e = np.exp(piece.astype(np.float32))
        found = np.frombuffer(result, np.float16).reshape(piece.shape)
        assert np.abs(found - e / e.sum(-1, keepdims=True)).max() < 1e-3
    kinds = ("MEMCPY_H2D", "Softmax", "MEMCPY_D2H")
    by_kind = [[op for op in timeline.ops if kind in (op.kernel, op.op_type)] for kind in kinds]
    assert [len(ops) for ops in by_kind] == [6, 6, 6]
    into, compute, out = by_kind
    for i in range(6):
        assert into[i].end < compute[i].start and compute[i].end < out[i].start
    assert into[3].start < out[1].end and out[1].start < into[3].end  # both ways at once
    us = timeline.us(out[-1].end - into[0].start)
    assert abs(pipeline.elapsed_ms * 1e3 - us) < 2  # events around it
    one_by_one = sum(timeline.us(op.cycles) for ops in by_kind for op in ops)
    assert us < 0.7 * one_by_one
    pipeline.release()
    assert not caplog.records  # nothing leaked
