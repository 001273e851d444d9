"""A residual and the RMSNormalization behind it: one kernel where that is faster."""

from __future__ import annotations

import pytest
from compiling import check_run, context, graph_of, kinds, same_values

from npusim.compiler.passes.add_rmsnorm import fuse_add_rmsnorm
from npusim.compiler.passes.precision import assign_precision
from npusim.ir import DType, Graph, verify
from npusim.models.builder import GraphBuilder


def residual(rows: int, width: int) -> Graph:
    """x + r, normalised and behind it used again, as in Llama."""

    def write(g: GraphBuilder) -> str:
        shape = (1, rows, width)
        total = g.node("Add", "sum", g.input("x", shape), g.input("r", shape))
        gamma = g.weight("gamma", (width,), 0.1, 1.0)
        y = g.node("RMSNormalization", "norm", total, gamma, axis=-1, epsilon=1e-5)
        return g.node("Sub", "late", g.node("Tanh", "mlp", y), total)

    return graph_of(write)


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_one_kernel(chip: str, precision: str) -> None:
    graph = residual(20, 96)
    out = verify(fuse_add_rmsnorm(graph, context(graph, chip)))
    assert kinds(out)[0] == "AddRmsNorm"
    same_values(graph, out)
    exe = check_run(graph, chip, precision, tile_level=True)
    fused = next(t for t in exe.tasks if t.op_type == "AddRmsNorm")
    assert exe.buffers[fused.outputs[1]].dtype is DType.FLOAT32


def test_what_does_not_pay_stays() -> None:
    """Long rows one by one, nothing overlapped, against two kernels that stream."""
    graph = residual(4096, 4096)
    ctx = context(graph, "ascend910a", "fp16")
    graph = assign_precision(graph, ctx)
    assert fuse_add_rmsnorm(graph, ctx) is graph
    assert "it would cost" in ctx.decisions[-1].reason
