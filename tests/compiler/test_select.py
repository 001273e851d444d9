"""Which kernel runs an operator, and which inputs become attributes of its launch."""

from __future__ import annotations

import pytest
from compiling import CHIPS, check_run, compiled, graph_of

from npusim.compiler.select import CANDIDATES, kernel_args, kernel_of, select_kernel
from npusim.ir import DType, Graph, Node, Tensor
from npusim.models.builder import GraphBuilder
from npusim.ops import get_operator
from npusim.program.kernel import get_kernel


def test_candidates_exist() -> None:
    for op_type, kernels in CANDIDATES.items():
        assert get_operator(op_type).op_type == op_type
        assert [get_kernel(k).name for k in kernels] == list(kernels)


def test_kernel_of() -> None:
    assert kernel_of("Reshape") == "view" and kernel_of("Relu") == "Elementwise"
    assert kernel_of("Conv") == "Conv2D" and kernel_of("Shape") == ""


def _args(write: object, at: int = -1) -> object:
    graph = graph_of(write)  # type: ignore[arg-type]
    return kernel_args(graph, graph.nodes[at])


def test_constant_parameters_are_attributes() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (4, 10))
        ends = [g.ints(n, v) for n, v in (("s", [1]), ("e", [9]), ("a", [1]), ("k", [2]))]
        return g.node("Slice", "y", x, *ends)

    args = _args(write)
    assert dict(args.attrs) == {"starts": (1,), "ends": (9,), "axes": (1,), "steps": (2,)}  # type: ignore[attr-defined]
    assert args.inputs[1:] == (None,) * 4  # type: ignore[attr-defined]
    check_run(graph_of(write), precision="fp32", tile_level=True)


def test_constant_scalars_are_attributes() -> None:
    args = _args(lambda g: g.node("Sub", "y", g.constant("one", 1.0), g.input("x", (5,))))
    assert args.inputs[0] is None and dict(args.attrs) == {"const0": 1.0}  # type: ignore[attr-defined]


def test_scalars_that_are_inputs_stay_operands() -> None:
    graph = graph_of(lambda g: g.node("Add", "y", g.input("x", (5,)), g.input("s", ())))
    args = kernel_args(graph, graph.nodes[0])
    assert [o.shape for o in args.operands if o] == [(5,), (), (5,)]
    check_run(graph, precision="fp32", tile_level=True)


def test_where_of_two_constants() -> None:
    def write(g: GraphBuilder) -> str:
        hot = g.node("Greater", "hot", g.input("x", (4, 40)), g.constant("zero", 0.0))
        return g.node("Where", "y", hot, g.constant("a", -3.0), g.constant("b", 7.0))

    for chip, precision in (("toy", "fp16"), ("ascend910b2", "fp32")):
        exe = check_run(graph_of(write), chip, precision, tile_level=True)
        assert not exe.notes


@pytest.mark.parametrize("chip", ["toy", "ascend910a"])
def test_fp32_products_run_on_the_vector_unit(chip: str) -> None:
    def write(g: GraphBuilder) -> str:
        x = g.node("Conv", "c", g.input("x", (1, 5, 9, 8)), g.weight("w", (7, 5, 3, 3), 0.2))
        x = g.node("Flatten", "f", g.node("Relu", "r", x))
        return g.node("MatMul", "y", x, g.weight("v", (7 * 7 * 6, 10), 0.1))

    exe = check_run(graph_of(write), chip, "fp32", tile_level=True)
    kernels = {t.call.kernel for t in exe.tasks if t.call}
    assert {"ConvVector", "MatMulVector"} <= kernels and len(exe.notes) == 2
    assert not any(t.uses_cube for t in exe.tasks)
    cube = {t.call.kernel for t in compiled(graph_of(write), chip).tasks if t.call}
    assert {"Conv2D", "MatMul"} <= cube


def test_refusals_name_their_reasons() -> None:
    tensors = {n: Tensor(n, (4,), DType.INT64) for n in ("x", "y")}
    graph = Graph("small", [Node("n", "Neg", ("x",), ("y",))], tensors, ["x"], ["y"])
    args = kernel_args(graph, graph.nodes[0])
    assert select_kernel(args, CHIPS["toy"]) == ("", "Elementwise: the vector unit has no int64")
    exe = compiled(graph)
    assert [t.kind.value for t in exe.tasks] == ["AI_CPU"]
    assert exe.notes == ["n (Neg) runs on the AI CPU: Elementwise: the vector unit has no int64"]
