"""Compile small graphs, run them, compare them with numpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from npusim import api
from npusim.chip import load_chip
from npusim.compiler.options import CompileContext, CompileOptions
from npusim.frontends.reference import evaluate
from npusim.ir import Graph, verify
from npusim.models import random_inputs
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable

CHIPS = {n: load_chip(n) for n in ("toy", "ascend910a", "ascend910b2")}


def graph_of(write: Callable[[GraphBuilder], str]) -> Graph:
    """The graph that `write` builds; it returns the output's name."""
    g = GraphBuilder("small")
    g.output(write(g))
    return g.finish()


def context(graph: Graph, chip: str = "ascend910a", precision: str = "fp32") -> CompileContext:
    """What a pass gets beside the graph."""
    taken = {*graph.tensors, *(n.name for n in graph.nodes)}
    return CompileContext(CHIPS[chip], CompileOptions(precision), taken=taken)


def passed(
    rewrite: Callable[[Graph, CompileContext], Graph],
    graph: Graph,
    chip: str = "ascend910a",
    precision: str = "fp32",
) -> Graph:
    """The verified result of one pass; the graph given must stay as it was."""
    before = (list(graph.nodes), dict(graph.tensors), dict(graph.constants))
    result = verify(rewrite(graph, context(graph, chip, precision)))
    assert (graph.nodes, graph.tensors, graph.constants) == before
    return result


def explained(
    rewrite: Callable[[Graph, CompileContext], Graph], graph: Graph, chip: str = "ascend910a"
) -> tuple[Graph, list[str]]:
    """What a pass makes of a graph, and why it left what it left."""
    ctx = context(graph, chip)
    return verify(rewrite(graph, ctx)), [d.reason for d in ctx.decisions if not d.taken]


def kinds(graph: Graph | Executable) -> list[str]:
    """Operator types in order, with the fused ones: 'Conv+Add+Relu'."""
    nodes = graph.nodes if isinstance(graph, Graph) else [t.node for t in graph.tasks]
    return ["+".join([n.op_type, *(s.op_type for s in n.epilogue)]) for n in nodes]


def count(graph: Graph | Executable, op_type: str) -> int:
    """Nodes of a type."""
    return Counter(k.split("+")[0] for k in kinds(graph))[op_type]


def same_values(graph: Graph, rewritten: Graph, rtol: float = 1e-5) -> None:
    """Two graphs compute the same, in numpy."""
    inputs = random_inputs(graph)
    want, got = evaluate(graph, inputs), evaluate(rewritten, inputs)
    for name, value in want.items():
        scale = float(np.abs(value).max())
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=rtol * scale)


def compiled(graph: Graph, chip: str = "ascend910a", precision: str = "fp16") -> Executable:
    """The executable."""
    return api.compile_graph(graph, CHIPS[chip], precision=precision)


def check_run(
    graph: Graph,
    chip: str = "ascend910a",
    precision: str = "fp16",
    tile_level: bool = False,
    inputs: Mapping[str, np.ndarray] | None = None,
) -> Executable:
    """Compile and run; outputs must match numpy's in fp32 (1e-4) or in direction (0.999)."""
    inputs = random_inputs(graph) if inputs is None else inputs
    exe = compiled(graph, chip, precision)
    result = api.run(exe, CHIPS[chip], inputs=inputs, tile_level=tile_level)
    for name, want in evaluate(graph, inputs).items():
        got = result.outputs[name]
        assert got.shape == want.shape and got.dtype == want.dtype
        found = api.compare(got, want)
        if precision == "fp32":
            assert found.max_rel_err < 1e-4 or found.max_abs_err < 1e-6, (name, found)
        else:
            assert found.cosine >= 0.999, (name, found)
    return exe
