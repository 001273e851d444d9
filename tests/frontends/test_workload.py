"""Workloads: the shipped ones, files, overrides, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npusim.errors import ModelError
from npusim.frontends.reference import evaluate
from npusim.frontends.workload import list_workloads, load_workload, read_workload
from npusim.ir import DType, verify
from npusim.models import random_inputs

DATA = Path(__file__).parents[1] / "data"

SHIPPED = [
    "bert-base",
    "bert-large",
    "bert-requests",
    "bert-tiny",
    "deepfm",
    "gemm-1024",
    "gemm-4096",
    "gemm-8192",
    "gemm-hpm",
    "gpt2-small",
    "inceptionv3",
    "layernorm",
    "llama",
    "llama-decode",
    "mobilenetv2",
    "relu-1gib",
    "resnet101",
    "resnet152",
    "resnet18",
    "resnet34",
    "resnet50",
    "softmax",
    "tinyllama",
    "tinyllama-decode",
    "unet",
    "vgg16",
    "vit-b16",
    "yolov8n",
]


def test_every_shipped_workload_loads() -> None:
    found = list_workloads()
    assert [w.name for w in found] == SHIPPED
    for work in found:
        loaded, graph = load_workload(work.name)
        assert work.description
        assert (graph.name, loaded.source, loaded.seed) == (work.name, work.source, work.seed)
        verify(graph)


def test_the_large_ones_are_what_they_say() -> None:
    work, graph = load_workload("gemm-hpm")
    assert work.options == {"m": 10240, "n": 21136, "k": 768}
    assert graph.tensors["B"].shape == (768, 21136)
    assert graph.tensors["B"].dtype is DType.FLOAT16
    assert load_workload("relu-1gib")[1].tensors["x"].nbytes == 1 << 30


def test_overrides() -> None:
    work, graph = load_workload("bert-tiny", batch=4, shapes={"seq": (32,)}, seed=5)
    assert (work.batch, work.options, work.seed, work.precision) == (4, {"seq": 32}, 5, "fp16")
    assert graph.tensors["input_ids"].shape == (4, 32)
    work, _ = load_workload("bert-tiny", shapes={"input_ids": (2, 384)}, precision="fp32")
    assert (work.batch, work.options, work.precision) == (2, {"seq": 384}, "fp32")


def test_built_in_model_and_files(tmp_path: Path) -> None:
    work, _ = load_workload("gemm")
    assert (work.name, work.batch, work.options["m"]) == ("gemm", 1, 1024)
    path = tmp_path / "mine.yaml"
    path.write_text("source: resnet18\nshapes: {input: [2, 3, 64, 64]}\nprecision: bf16\n")
    work, graph = load_workload(str(path))
    assert (work.name, work.batch, work.precision) == ("mine", 2, "bf16")
    assert graph.tensors["output"].shape == (2, 1000)


def test_onnx_by_path_and_by_yaml(tmp_path: Path) -> None:
    source = DATA / "bert_torch_tiny.onnx"
    work, graph = load_workload(str(source), batch=3)
    assert (work.name, work.batch) == ("bert_torch_tiny", 3)
    assert graph.tensors["pooler_output"].shape == (3, 64)
    (tmp_path / source.name).write_bytes(source.read_bytes())
    path = tmp_path / "torch-bert.yaml"
    path.write_text(f"source: {source.name}\nbatch: 2\n")
    work, graph = load_workload(str(path))
    assert (work.name, work.batch) == ("torch-bert", 2)
    assert graph.tensors["last_hidden_state"].shape == (2, 16, 64)


@pytest.mark.parametrize("name", ["bert_torch_tiny", "resnet_torch_tiny"])
def test_torch_exports_agree_with_onnxruntime(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    path = str(DATA / f"{name}.onnx")
    _, graph = load_workload(path, batch=3)
    inputs = random_inputs(graph)
    expected = ort.InferenceSession(path).run(graph.outputs, inputs)
    results = evaluate(graph, inputs)
    for output, value in zip(graph.outputs, expected, strict=True):
        np.testing.assert_allclose(results[output], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source: resnet50\nbatsh: 2\n", "did you mean batch"),
        ("description: nothing\n", "'source' is missing"),
        ("source: resnet50\nbatch: many\n", "batch is 'many'"),
        ("source: resnet50\nbatch: 0\n", "greater than or equal to 1"),
        ("source: resnet50\nprecision: fp8\n", "precision is 'fp8'"),
        ("source: resnet50\nshapes: {input: [1, 3, x, 64]}\n", "shapes.input.2 is 'x'"),
        ("source: resnet51\n", "no built-in model 'resnet51'"),
        ("source: resnet50\noptions: {m: 3}\n", "no input or option 'm'"),
        ("source: a.onnx\noptions: {seq: 4}\n", "belong to built-in models"),
        ("just words\n", "no keys"),
        ("source: [\n", "valid YAML"),
    ],
)
def test_a_wrong_file_says_so_in_three_lines(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ModelError, match=message) as caught:
        read_workload(path)
    assert len(str(caught.value).splitlines()) == 3
    assert str(path) in caught.value.what


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        ("bert-bse", {}, "did you mean bert-base"),
        ("nowhere.yaml", {}, "No such file"),
        ("resnet50", {"precision": "float16"}, "allowed: fp16, bf16, fp32"),
        ("resnet50", {"shapes": {"input": (1, 1, 28, 28)}}, "3 is fixed"),
        ("any.onnx", {"batch": 2, "shapes": {"x": (1, 4)}}, "not both"),
    ],
)
def test_wrong_requests(spec: str, arguments: dict, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_workload(spec, **arguments)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


def test_fp32_asks_for_an_fp32_model() -> None:
    _, graph = load_workload("gemm-1024", precision="fp32")
    assert {t.dtype.value for t in graph.tensors.values()} == {"float32"}
