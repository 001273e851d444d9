"""What ships, small: O0 gives the numbers of O2, and of O2 without any pass that did something.

Every built-in model (all workloads are of these), on a chip of each kind, in every precision that
its cube takes or that the vector unit can do instead.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from small_models import SMALL

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions, compile_watched
from npusim.compiler.rewrite import Kind
from npusim.ir import DType, Graph
from npusim.models import build_model, list_models, random_inputs
from npusim.models.bert import BertConfig, encoder
from npusim.models.builder import GraphBuilder
from npusim.models.registry import get_model
from npusim.models.resnet import bottleneck, resnet

CHIPS = {name: load_chip(name) for name in ("ascend910a", "ascend910b2")}
RUNS = [("ascend910a", "fp32"), ("ascend910a", "fp16"), ("ascend910b2", "fp32"),
        ("ascend910b2", "fp16"), ("ascend910b2", "bf16")]  # fmt: skip
#: Largest difference, over an output's largest value: what roundings of tensors in between make.
WITHIN = {"fp32": 2e-5, "fp16": 2e-2, "bf16": 1e-1}
#: Sizes that keep what the models are made of: several blocks, ragged ones too.
SIZES = {
    "resnet18": {"height": 32, "width": 32, "classes": 10},
    "gemm": {"m": 100, "n": 75, "k": 60},
    "relu": {"rows": 70, "columns": 100},
    "softmax": {"rows": 70, "columns": 100},
    "layernorm": {"rows": 70, "columns": 100},
}
BERTS = {
    "bert-tiny": BertConfig(layers=2, hidden=128, heads=2, vocab=100),
    "bert-base": BertConfig(layers=2, hidden=768, heads=12, vocab=100),
    "bert-large": BertConfig(layers=1, hidden=1024, heads=16, vocab=100),
}
NAMES = [*SIZES, "resnet50", *BERTS]


@functools.cache
def small(name: str) -> tuple[Graph, dict[str, np.ndarray]]:
    """A built-in model cut down, and its inputs."""
    g = GraphBuilder(name, DType.FLOAT32)
    if name in BERTS:
        encoder(g, BERTS[name], batch=1, seq=24)
    elif name == "resnet50":
        resnet(g, (1, 3, 32, 32), 10, (1, 2, 1, 1), bottleneck)
    else:
        found = get_model(name)
        found.build(g, **found.bind({}, None, SIZES[name]))
    graph = g.finish()
    return graph, random_inputs(graph)


def outputs(name: str, chip: str, options: CompileOptions) -> dict[str, np.ndarray]:
    graph, inputs = small(name)
    exe = api.compile_graph(graph, CHIPS[chip], options=options)
    return api.run(exe, CHIPS[chip], inputs=inputs).outputs


def test_all_models_are_here() -> None:
    deeper = {"resnet101", "resnet152"}  # of the blocks of ResNet-50
    assert {*NAMES, *SMALL, *deeper} == {m.name for m in list_models()}


@pytest.mark.parametrize(("chip", "precision"), [("ascend910a", "fp16"), ("ascend910b2", "fp32")])
@pytest.mark.parametrize("name", SMALL)
def test_families_keep_the_numbers(name: str, chip: str, precision: str) -> None:
    """O0 gives what O2 gives; `test_built_models` holds O2 to onnxruntime."""
    graph = build_model(name, **SMALL[name])
    inputs = random_inputs(graph)
    lowered, fused = (
        api.run(api.compile_graph(graph, CHIPS[chip], options=options), CHIPS[chip], inputs=inputs)
        for options in (CompileOptions(precision, level=0), CompileOptions(precision))
    )
    for output, want in lowered.outputs.items():
        found = api.compare(fused.outputs[output], want)
        assert found.cosine > 0.999
        assert precision != "fp32" or found.max_rel_err < 1e-4


@pytest.mark.parametrize(("chip", "precision"), RUNS)
@pytest.mark.parametrize("name", NAMES)
def test_passes_keep_the_numbers(name: str, chip: str, precision: str) -> None:
    fused = CompileOptions(precision)
    found = compile_watched(small(name)[0], CHIPS[chip], fused)
    did = {p.name for p in found.passes if p.effects and p.kind is not Kind.NEEDED}
    others = [CompileOptions(precision, disabled=frozenset({p})) for p in sorted(did)]
    want = outputs(name, chip, CompileOptions(precision, level=0))
    for options in (fused, *others):
        got = outputs(name, chip, options)
        assert got.keys() == want.keys()
        for output, value in got.items():
            scale = np.abs(want[output]).max()
            np.testing.assert_allclose(
                value / scale, want[output] / scale, atol=WITHIN[precision],
                err_msg=f"{output} without {sorted(options.disabled)}",
            )  # fmt: skip
