"""Built-in models: sizes against the published ones, laziness, determinism, onnxruntime."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from npusim.errors import ModelError
from npusim.frontends.onnx_export import to_onnx
from npusim.frontends.reference import evaluate
from npusim.ir import DType, Graph, verify
from npusim.models import build_model, count_parameters, get_model, list_models, random_inputs
from npusim.models.registry import model
from npusim.ops import attributes, get_operator


def macs(graph: Graph) -> int:
    """Multiply-accumulates of a graph."""
    total = 0
    for node in graph.nodes:
        ins = [graph.type_of(i) if i else None for i in node.inputs]
        outs = [graph.type_of(o) for o in node.outputs]
        total += get_operator(node.op_type).work(ins, outs, attributes(node)).macs
    return total


@pytest.mark.parametrize(
    ("name", "parameters", "gmacs", "operators"),
    [
        ("resnet18", 11_689_512, 1.814, {"Conv": 20, "BatchNormalization": 20, "Add": 8}),
        ("resnet50", 25_557_032, 4.089, {"Conv": 53, "BatchNormalization": 53, "Relu": 49}),
        ("resnet34", 21_797_672, 3.664, {"Conv": 36, "Add": 16}),
        ("resnet101", 44_549_160, 7.801, {"Conv": 104, "Add": 33}),
        ("resnet152", 60_192_808, 11.514, {"Conv": 155, "Add": 50}),
        ("mobilenetv2", 3_504_872, 0.3008, {"Conv": 52, "Clip": 35, "Add": 10}),
        ("vgg16", 138_357_544, 15.470, {"Conv": 13, "MaxPool": 5, "Gemm": 3}),
        ("inceptionv3", 23_834_568, 5.713, {"Conv": 94, "Concat": 11, "AveragePool": 9}),
        ("vit-b16", 86_567_656, 17.564, {"Softmax": 12, "Erf": 12, "LayerNormalization": 25}),
        ("gpt2-small", 124_439_808, 16.114, {"Softmax": 12, "Tanh": 12, "LayerNormalization": 25}),
        ("yolov8n", 3_157_200, 4.372, {"Conv": 64, "Resize": 2, "Softmax": 1}),
        ("bert-tiny", 4_385_920, 0.0587, {"Softmax": 2, "Gather": 4, "Tanh": 1}),
        ("bert-base", 109_482_240, 11.174, {"Softmax": 12, "LayerNormalization": 25, "Gelu": 12}),
        ("bert-large", 335_141_888, 39.460, {"Softmax": 24, "MatMul": 24 * 8, "Gemm": 1}),
    ],
)
def test_published_sizes(
    name: str, parameters: int, gmacs: float, operators: dict[str, int]
) -> None:
    graph = verify(build_model(name))
    assert count_parameters(graph) == parameters
    assert macs(graph) / 1e9 == pytest.approx(gmacs, rel=1e-3)
    counts = Counter(n.op_type for n in graph.nodes)
    assert {op: counts[op] for op in operators} == operators


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        # TinyLlama-1.1B, and the U-Net of 64 channels (its two classes included).
        (
            "llama",
            {"layers": 22, "hidden": 2048, "heads": 32, "kv_heads": 4, "intermediate": 5632},
            1_100_048_384,
        ),
        ("unet", {"base": 64}, 31_037_698),
        # A weight and `embedding` factors a feature; 390 → 400 → 400 → 400 → 1.
        ("deepfm", {"features": 1000}, 11_000 + 391 * 400 + 2 * 401 * 400 + 401),
    ],
)
def test_published_sizes_by_options(name: str, options: dict[str, int], parameters: int) -> None:
    assert count_parameters(build_model(name, **options)) == parameters


@pytest.mark.parametrize("name", [m.name for m in list_models()])
def test_declared_inputs_are_the_graphs(name: str) -> None:
    found = get_model(name)
    graph = build_model(name)
    sizes: dict[int | str, int] = {"batch": 1, **found.options}
    sizes["batch"] = graph.tensors[graph.inputs[0]].shape[0] if found.batched else 1
    declared = {
        i.replace("{layer}", str(layer)): tuple(sizes.get(d, d) for d in dims)
        for layer in range(found.options.get("layers", 1))
        for i, dims in found.inputs.items()
    }
    assert {i: graph.tensors[i].shape for i in graph.inputs} == declared


def test_building_is_lazy() -> None:
    tracemalloc.start()
    build_model("bert-large")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6  # weights: 1.3 GB


def test_weights_depend_on_seed_and_name_only() -> None:
    first, again, other = (
        build_model("bert-tiny", seed=s, seq=q).constants for s, q in ((3, 128), (3, 64), (4, 128))
    )
    a, b = "encoder.layer.0.intermediate.dense.weight", "encoder.layer.1.intermediate.dense.weight"
    np.testing.assert_array_equal(first[a].value(), again[a].value())
    assert not np.array_equal(first[a].value(), other[a].value())
    assert not np.array_equal(first[a].value(), first[b].value())
    # Pinned: a change here changes the numbers of every recorded run.
    np.testing.assert_allclose(first[a].value()[0, :3], PINNED, rtol=1e-6)


PINNED = [0.01929968, 0.04101489, -0.08563167]


def test_dtype_is_that_of_weights_and_float_inputs() -> None:
    graph = build_model("layernorm", dtype="float16")
    assert {t.dtype for t in graph.tensors.values()} == {DType.FLOAT16}
    assert graph.constants["scale"].value().dtype == np.float16
    assert random_inputs(graph)["x"].dtype == np.float16


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("resnet18", {"batch": 2, "height": 64, "width": 64}), ("bert-tiny", {"batch": 2})],
)
def test_against_onnxruntime(name: str, sizes: dict[str, int]) -> None:
    ort = pytest.importorskip("onnxruntime")
    graph = build_model(name, **sizes)
    inputs = random_inputs(graph)
    session = ort.InferenceSession(to_onnx(graph).SerializeToString())
    expected = dict(zip(graph.outputs, session.run(graph.outputs, inputs), strict=True))
    for output, value in evaluate(graph, inputs).items():
        np.testing.assert_allclose(value, expected[output], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "sizes"), [("resnet50", {"batch": 2, "height": 128, "width": 128}), ("bert-tiny", {})]
)
def test_fp16_agrees_with_fp32(name: str, sizes: dict[str, int]) -> None:
    exact, half = build_model(name, **sizes), build_model(name, dtype="float16", **sizes)
    inputs = random_inputs(exact)
    rounded = {k: v.astype(half.tensors[k].dtype.np) for k, v in inputs.items()}
    a, b = evaluate(exact, inputs), evaluate(half, rounded)
    for output in exact.outputs:
        x, y = a[output].astype(np.float64).ravel(), b[output].astype(np.float64).ravel()
        assert 0.3 < x.std() < 10
        assert x @ y / np.sqrt((x @ x) * (y @ y)) > 0.9995
    last = exact.outputs[-1]
    assert (a[last].argmax(-1) == b[last].argmax(-1)).all()


def test_random_inputs_fit_the_graph() -> None:
    graph = build_model("bert-base", batch=8)
    inputs = random_inputs(graph, seed=1)
    ids, mask, types = (inputs[n] for n in graph.inputs)
    assert 30_000 < ids.max() < 30_522
    assert ids.min() >= 0
    assert set(np.unique(types)) == {0, 1}
    assert 0.85 < mask.mean() < 1
    assert (np.diff(mask) <= 0).all()
    again = random_inputs(graph, seed=1)
    assert all(np.array_equal(inputs[n], again[n]) for n in inputs)
    assert not np.array_equal(ids, random_inputs(graph, seed=2)["input_ids"])


@pytest.mark.parametrize(
    ("name", "shapes", "inputs"),
    [
        ("bert-tiny", {"input_ids": (4, 384)}, {"attention_mask": (4, 384)}),
        ("bert-tiny", {"seq": (64,)}, {"input_ids": (1, 64)}),
        ("resnet18", {"input": (2, 3, 96, 64)}, {"input": (2, 3, 96, 64)}),
        (
            "llama-decode",
            {"past_key_values.3.key": (2, 4, 50, 32)},
            {"input_ids": (2, 1), "past_key_values.0.value": (2, 4, 50, 32)},
        ),
        ("gemm", {"M": (64,), "B": (32, 16)}, {"A": (64, 32), "B": (32, 16)}),
    ],
)
def test_shapes_bind_options(
    name: str, shapes: dict[str, tuple[int, ...]], inputs: dict[str, tuple[int, ...]]
) -> None:
    graph = build_model(name, shapes=shapes)
    assert {i: graph.tensors[i].shape for i in inputs} == inputs


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet5", {}, "did you mean resnet50"),
        ("resnet50", {"heigth": 64}, "did you mean height"),
        ("resnet50", {"height": 16}, "32 and more"),
        ("resnet50", {"batch": 0}, "1 and more"),
        ("resnet50", {"shapes": {"input": (1, 4, 64, 64)}}, "3 is fixed"),
        ("bert-base", {"seq": 513}, "up to 512"),
        ("inceptionv3", {"height": 64}, "75 and more"),
        ("vit-b16", {"height": 100}, "multiples of patch"),
        ("gpt2-small", {"seq": 1025}, "up to 1024 tokens"),
        ("llama", {"heads": 6, "kv_heads": 4}, "a multiple of kv_heads"),
        ("llama-decode", {"shapes": {"input_ids": (1, 2)}}, "1 is fixed"),
        ("unet", {"width": 40}, "multiples of 16"),
        ("yolov8n", {"width": 80}, "multiples of 32"),
        ("bert-base", {"shapes": {"inputs_ids": (1, 64)}}, "did you mean input_ids"),
        ("bert-base", {"shapes": {"input_ids": (1, 64, 64)}}, "rank 2"),
        ("bert-base", {"shapes": {"seq": (1, 64)}}, "one number: seq"),
        ("bert-base", {"batch": 2, "shapes": {"input_ids": (1, 64)}}, "batch 1, which is 2"),
        ("gemm", {"shapes": {"A": (8, 16), "B": (8, 16)}}, "k 8, which is 16"),
        ("gemm", {"batch": 2}, "has no batch"),
        ("gemm", {"dtype": "floot16"}, "did you mean float16"),
    ],
)
def test_errors(name: str, arguments: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        build_model(name, **arguments)
    assert len(str(caught.value).splitlines()) == 3


def test_a_name_registers_once() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        model("gemm", "again", {})(lambda g: None)
