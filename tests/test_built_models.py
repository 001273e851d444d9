"""The built-in families through the whole chain: small ones computed, full ones compiled."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest
from small_models import SMALL

from npusim import api
from npusim.chip import load_chip
from npusim.frontends.check import reference_values
from npusim.ir import Graph
from npusim.models import build_model, random_inputs
from npusim.program.executable import TaskKind


@functools.cache
def _reference(name: str) -> tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A small model, inputs, and onnxruntime's outputs."""
    graph = build_model(name, **SMALL[name])
    inputs = random_inputs(graph)
    return graph, inputs, reference_values(graph, None, inputs, graph.outputs)[0]


@pytest.mark.parametrize(("chip", "precision"), [("ascend910b2", "fp32"), ("ascend910a", "fp16")])
@pytest.mark.parametrize("name", SMALL)
def test_against_onnxruntime(name: str, chip: str, precision: str) -> None:
    graph, inputs, reference = _reference(name)
    spec = load_chip(chip)
    exe = api.compile_graph(graph, spec, precision=precision)
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)
    outputs = api.run(exe, spec, inputs=inputs).outputs
    assert set(outputs) == set(reference)
    for output, want in reference.items():
        assert 0.05 < want.std() < 100  # a comparison of nothing would say nothing
        found = api.compare(outputs[output], want)
        assert found.cosine >= 0.999
        if precision == "fp32":
            assert found.max_rel_err < 1e-4


@pytest.mark.parametrize(
    ("name", "options", "operators"),
    [
        ("resnet152", {}, {"Conv": 155, "MaxPool": 1, "Gemm": 1, "Add": 0}),
        ("mobilenetv2", {}, {"Conv": 52, "Clip": 0, "Add": 0, "TransData": 1}),
        ("vgg16", {}, {"Conv": 13, "MaxPool": 5, "Gemm": 3}),
        ("inceptionv3", {}, {"Conv": 94, "Concat": 11, "TransData": 1}),
        ("vit-b16", {}, {"FlashAttentionScore": 12, "Gelu": 12, "Softmax": 0, "Erf": 0}),
        ("gpt2-small", {}, {"FlashAttentionScore": 12, "Gelu": 12, "Split": 12, "Tanh": 0}),
        ("llama", {"layers": 2}, {"FlashAttentionScore": 2, "Swish": 2, "Softmax": 0}),
        ("llama-decode", {"layers": 2}, {"FlashAttentionScore": 2, "Concat": 8}),
        ("unet", {}, {"Conv": 23, "Concat": 4, "TransData": 2}),
        ("yolov8n", {}, {"Conv": 64, "Swish": 57, "Resize": 2, "Split": 10}),
        ("deepfm", {}, {"Gather": 2, "Gemm": 4}),
    ],
)
def test_full_size_compiles(name: str, options: dict[str, int], operators: dict[str, int]) -> None:
    exe = api.compile_graph(build_model(name, **options), load_chip("ascend910a"))
    counts = Counter(t.op_type for t in exe.tasks)
    counts["Conv"] += 2 * counts["ConvConv"]
    assert {op: counts[op] for op in operators} == operators
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize(
    ("name", "batch", "most"), [("resnet50", 1, 57), ("resnet50", 256, 57), ("mobilenetv2", 1, 55)]
)
def test_convolutions_take_what_follows_them(
    name: str, batch: int, most: int, precision: str
) -> None:
    """Residuals and ReLU6 too, on both kinds of chip: no more kernels where cores are apart."""
    tasks = {}
    for chip in ("ascend910a", "ascend910b2"):
        if chip == "ascend910a" and precision == "fp32":
            continue  # its cube has no fp32
        tasks[chip] = api.compile_graph(
            build_model(name, batch=batch), load_chip(chip), precision=precision
        ).tasks
        pairs = sum(t.op_type == "ConvConv" for t in tasks[chip])
        assert len(tasks[chip]) == most - pairs
        assert not {"Add", "Clip", "Relu"} & {t.op_type for t in tasks[chip]}
    kernels = ("Conv2DEpilogue", "ConvConvEpilogue")
    mixed = [t for t in tasks["ascend910b2"] if t.call and t.call.kernel in kernels]
    assert len(mixed) > 9 and all(t.call and t.call.plan.workspace for t in mixed)


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("unet", "ascend910a"),
        ("unet", "ascend910b2"),
        ("llama-decode", "ascend910b2"),
        ("yolov8n", "ascend910b2"),
        ("mobilenetv2", "ascend910b2"),
    ],
)
def test_levels_agree(name: str, chip: str) -> None:
    """Every task's outputs, computed instruction by instruction and on whole tensors."""
    graph, inputs, _ = _reference(name)
    spec = load_chip(chip)
    exe = api.compile_graph(graph, spec)
    operator = api.run(exe, spec, inputs=inputs, keep_tensors=True)
    tile = api.run(exe, spec, inputs=inputs, keep_tensors=True, tile_level=True)
    assert tile.timeline == operator.timeline
    for output, value in operator.tensors.items():
        assert api.compare(tile.tensors[output], value).max_rel_err < 4e-3, output
