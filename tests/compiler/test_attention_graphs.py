"""A model with fused attention: compiled, timed, and run at both levels."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import CHIPS

from npusim import api
from npusim.frontends.reference import evaluate
from npusim.ir import DType, Graph, Node, Tensor, TensorType, verify
from npusim.machine.run import run_executable
from npusim.models import random_inputs
from npusim.ops import infer_node


def attention(backward: bool) -> Graph:
    """Attention of 4 heads on 2 in fp32, causal; with its gradient where asked for."""
    q, kv = (1, 130, 256), (1, 130, 128)
    inputs = {"q": q, "k": kv, "v": kv, **({"dy": q} if backward else {})}
    tensors = {n: Tensor(n, s, DType.FLOAT32) for n, s in inputs.items()}
    tensors["mask"] = Tensor("mask", (2048, 2048), DType.BOOL)
    attrs = {"head_num": 4, "input_layout": "BSH", "scale_value": 0.125, "sparse_mode": 2}
    nodes = [
        Node("fa", "FlashAttentionScore", ("q", "k", "v", "mask"), ("top", "total", "y"), attrs)
    ]
    if backward:
        kept = ("q", "k", "v", "dy", "mask", "top", "total", "y")
        nodes.append(Node("fag", "FlashAttentionScoreGrad", kept, ("dq", "dk", "dv"), attrs))
    for node in nodes:
        kinds: list[TensorType | None] = [tensors[i].type for i in node.inputs]
        for name, kind in zip(node.outputs, infer_node(node, kinds, [None] * 8), strict=True):
            tensors[name] = Tensor(name, kind.shape, kind.dtype)
    outputs = ["top", "y", *(["dq", "dk", "dv"] if backward else [])]
    return verify(Graph("attention", nodes, tensors, [*inputs, "mask"], outputs))


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("tile_level", [False, True])
def test_it_runs(chip: str, backward: bool, tile_level: bool) -> None:
    graph = attention(backward)
    inputs = random_inputs(graph)
    inputs["mask"] = np.triu(np.ones((2048, 2048), bool), 1)
    exe = api.compile_graph(graph, CHIPS[chip], precision="fp16")
    assert exe.buffers["top"].dtype is DType.FLOAT32  # statistics stay fp32
    result = api.run(exe, CHIPS[chip], inputs=inputs, tile_level=tile_level)
    for name, want in evaluate(graph, inputs).items():
        assert api.compare(result.outputs[name], want).cosine >= 0.999, name


def test_full_detail_gives_the_same_times() -> None:
    """MIX kernels are simulated with all their blocks together either way."""
    chip = CHIPS["ascend910b2"]
    exe = api.compile_graph(attention(True), chip, precision="fp16")
    fast, full = (run_executable(exe, chip, detail=d).timeline for d in ("fast", "full"))
    pairs = [p for p in zip(fast.ops, full.ops, strict=True) if "Flash" in p[0].op_type]
    assert len(pairs) == 2
    for a, b in pairs:
        assert (a.cycles, a.core_type) == (b.cycles, "MIX")
        assert {p: t.busy for p, t in a.pipes.items()} == {p: t.busy for p, t in b.pipes.items()}
