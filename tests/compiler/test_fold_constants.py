"""Nodes of constants become constants, computed when they are asked for."""

from __future__ import annotations

import numpy as np
from compiling import check_run, graph_of, kinds, passed, same_values

from npusim.compiler.passes.fold_constants import fold_constants
from npusim.ir import Constant, DType, Graph, Node, Tensor, TensorType
from npusim.models.builder import GraphBuilder


def _chain(g: GraphBuilder) -> str:
    w = g.node("Exp", "exp", g.weight("w", (3, 4), 1.0))
    w = g.node("Transpose", "turned", g.node("Neg", "neg", w), perm=[1, 0])
    return g.node("MatMul", "y", g.input("x", (2, 4)), w)


def test_chain() -> None:
    graph = graph_of(_chain)
    result = passed(fold_constants, graph)
    assert kinds(result) == ["MatMul"]
    same_values(graph, result)
    check_run(graph)


def test_folding_is_lazy() -> None:
    asked: list[int] = []

    def make() -> np.ndarray:
        asked.append(1)
        return np.ones((2,), np.float32)

    type_ = TensorType((2,), DType.FLOAT32)
    tensors = {n: Tensor(n, (2,), DType.FLOAT32) for n in ("w", "e", "x", "y")}
    nodes = [Node("exp", "Exp", ("w",), ("e",)), Node("add", "Add", ("x", "e"), ("y",))]
    graph = Graph("small", nodes, tensors, ["x"], ["y"], {"w": Constant(type_, make)})
    result = passed(fold_constants, graph)
    assert kinds(result) == ["Add"] and not asked
    np.testing.assert_allclose(result.constants["e"].value(), np.e, rtol=1e-6)
    assert asked


def test_a_constant_output() -> None:
    """It keeps its type in a narrow precision, also when nodes read it too."""

    def write(g: GraphBuilder) -> str:
        c = g.node("Exp", "c", g.weight("w", (3, 4), 1.0))
        g.output(g.node("Add", "sum", g.input("x", (3, 4)), c))
        return c

    for precision in ("fp32", "fp16"):
        exe = check_run(graph_of(write), precision=precision)
        assert exe.buffers["c"].dtype is DType.FLOAT32
