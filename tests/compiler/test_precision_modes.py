"""CANN's precision modes: the decision per operator, the Casts that it takes, the numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest
from compiling import CHIPS, count, graph_of, kinds
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import BINARY, UNARY, random_graph

from npusim import api
from npusim.cli_shared import PRECISION_MODES
from npusim.compiler import CompileOptions
from npusim.compiler.mixlist import MixList
from npusim.compiler.options import CompileContext
from npusim.compiler.passes.precision import assign_precision
from npusim.compiler.precision_choice import data_inputs, data_outputs
from npusim.compiler.precision_modes import MODES, SHORT, mode_named, modes_of
from npusim.errors import UnsupportedError
from npusim.frontends.reference import evaluate
from npusim.frontends.workload import Precision
from npusim.ir import DType, Graph, verify
from npusim.models import build_model, random_inputs
from npusim.models.builder import GraphBuilder

HALF, WIDE = DType.FLOAT16, DType.FLOAT32


def rewritten(
    graph: Graph, mode: str, chip: str = "ascend910a", mixlist: MixList | None = None
) -> tuple[Graph, list[str]]:
    """The graph after the pass, and its notes."""
    taken = {*graph.tensors, *(n.name for n in graph.nodes)}
    ctx = CompileContext(CHIPS[chip], CompileOptions(mode, mixlist=mixlist), taken=taken)
    return verify(assign_precision(graph, ctx)), ctx.notes


def types(graph: Graph) -> dict[str, str]:
    """Node → element type of its result, Casts left out."""
    found = {n.name: graph.tensors[n.outputs[0]].dtype for n in graph.nodes if n.op_type != "Cast"}
    return {name: {HALF: "fp16", WIDE: "fp32", DType.BFLOAT16: "bf16"}[d]
            for name, d in found.items()}  # fmt: skip


def check_casts(graph: Graph) -> None:
    """One Cast per tensor and type, none of what a Cast made, none that nobody reads."""
    casts = [n for n in graph.nodes if n.op_type == "Cast"]
    made = [(n.inputs[0], graph.tensors[n.outputs[0]].dtype) for n in casts]
    assert len(set(made)) == len(made)
    results = {n.outputs[0] for n in casts}
    assert not results & {n.inputs[0] for n in casts}
    assert results <= {i for n in graph.nodes for i in n.inputs} | set(graph.outputs)
    assert all(graph.tensors[n.inputs[0]].dtype is not graph.tensors[n.outputs[0]].dtype
               for n in casts)  # fmt: skip


def _layer_norm(g: GraphBuilder) -> str:
    """A matrix product, a layer normalisation in its parts, a residual sum, another product."""
    x = g.input("x", (8, 64))
    h = g.node("MatMul", "h", x, g.weight("w", (64, 64), 0.2))
    d = g.node("Sub", "d", h, g.node("ReduceMean", "mean", h, g.ints("axis", [-1])))
    square = g.node("Pow", "square", d, g.constant("two", np.float32(2)))
    variance = g.node("ReduceMean", "variance", square, g.ints("axis2", [-1]))
    eps = g.constant("eps", np.float32(1e-5))
    root = g.node("Sqrt", "root", g.node("Add", "plus", variance, eps))
    n = g.node("Mul", "scaled", g.node("Div", "n", d, root), g.weight("gamma", (64,), 1.0))
    return g.node("MatMul", "y", g.node("Add", "sum", n, h), g.weight("w2", (64, 64), 0.2))


def test_mixed_lists() -> None:
    """White fp16, black fp32; gray as inputs, a tie as needs fewer Casts."""
    result, notes = rewritten(graph_of(_layer_norm), "allow_mix_precision")
    half = {"h", "sum", "y"}
    assert types(result) == {
        name: "fp16" if name in half else "fp32"
        for name in ("h", "mean", "d", "square", "variance", "plus", "root", "n", "scaled", "sum",
                     "y")
    }  # fmt: skip
    check_casts(result)
    # Into the model; h for the mean and the difference; the scaled one for the sum; out of it.
    assert count(result, "Cast") == 4 and notes == []
    assert result.constants["w"].type.dtype is HALF and result.constants["gamma"].type.dtype is WIDE


def test_a_tie_casts_the_smaller_one() -> None:
    def write(g: GraphBuilder) -> str:
        h = g.node("MatMul", "h", g.input("x", (32, 64)), g.weight("w", (64, 64), 0.2))
        z = g.node("ReduceSum", "z", g.input("other", (32, 64)), g.ints("axis", [-1]))
        return g.node("Softmax", "y", g.node("Mul", "scaled", h, z))

    result, _ = rewritten(graph_of(write), "allow_mix_precision")
    assert types(result) == {"h": "fp16", "z": "fp32", "scaled": "fp16", "y": "fp16"}
    check_casts(result)


def test_no_round_trip_through_the_narrow_type() -> None:
    """A gray operator between a product and black ones takes the type that these want."""

    def write(g: GraphBuilder) -> str:
        h = g.node("MatMul", "h", g.input("x", (8, 64)), g.weight("w", (64, 64), 0.2))
        e = g.node("Log", "e", g.input("other", (8, 64)))
        return g.node("Log", "y", g.node("Add", "sum", h, e))

    result, _ = rewritten(graph_of(write), "allow_mix_precision")
    assert types(result) == {"h": "fp16", "e": "fp32", "sum": "fp32", "y": "fp32"}
    assert kinds(result) == ["Cast", "MatMul", "Log", "Cast", "Add", "Log"]


@pytest.mark.parametrize(("reader", "dtype"), [("MatMul", "fp16"), ("Pow", "fp32")])
def test_rows_of_a_table_are_as_their_readers_want_them(reader: str, dtype: str) -> None:
    def write(g: GraphBuilder) -> str:
        rows = g.node("Gather", "rows", g.weight("table", (50, 16), 1.0),
                      g.input("ids", (4,), DType.INT64))  # fmt: skip
        size = (16, 16) if reader == "MatMul" else (1,)
        return g.node(reader, "y", g.node("Relu", "r", rows), g.weight("w", size, 0.3))

    result, _ = rewritten(graph_of(write), "allow_mix_precision")
    assert types(result) == dict.fromkeys(("rows", "r", "y"), dtype)
    assert count(result, "Cast") == (1 if dtype == "fp16" else 0)


def test_a_constant_in_both_types_has_a_twin() -> None:
    def write(g: GraphBuilder) -> str:
        w = g.weight("w", (16, 16), 0.3)
        g.output(g.node("Pow", "p", g.input("z", (16, 16)), w))
        return g.node("MatMul", "h", g.input("x", (4, 16)), w)

    result, _ = rewritten(graph_of(write), "allow_mix_precision")
    found = {name: c.type.dtype for name, c in result.constants.items()}
    assert sorted(found.values()) == [HALF, WIDE] and found["w"] is WIDE
    check_casts(result)


@pytest.mark.parametrize(
    ("chip", "cube"), [("ascend910a", "fp16"), ("ascend910b2", "fp32"), ("toy", "fp16")]
)
def test_fp32_where_a_kernel_takes_it(chip: str, cube: str) -> None:
    result, notes = rewritten(graph_of(_layer_norm), "allow_fp32_to_fp16", chip)
    assert types(result) == {name: cube if name in ("h", "y") else "fp32" for name in types(result)}
    check_casts(result)
    assert any("the cube of" in text for text in notes) == (cube == "fp16")


def test_what_only_moves_data_follows() -> None:
    """No Casts around a Transpose between two products."""

    def write(g: GraphBuilder) -> str:
        h = g.node("MatMul", "h", g.input("x", (16, 16)), g.weight("w", (16, 16), 0.3))
        t = g.node("Transpose", "t", h, perm=[1, 0])
        return g.node("MatMul", "y", t, g.weight("w2", (16, 16), 0.3))

    result, _ = rewritten(graph_of(write), "allow_fp32_to_fp16")
    assert kinds(result) == ["Cast", "MatMul", "Transpose", "MatMul", "Cast"]


def test_an_output_that_others_read_in_fp32_is_cast_once() -> None:
    def write(g: GraphBuilder) -> str:
        h = g.node("MatMul", "h", g.input("x", (4, 16)), g.weight("w", (16, 16), 0.3))
        g.output(h)
        return g.node("Pow", "y", h, g.constant("two", np.float32(2)))

    result, _ = rewritten(graph_of(write), "allow_mix_precision")
    assert kinds(result) == ["Cast", "MatMul", "Cast", "Pow"]
    assert result.tensors["h"].dtype is result.tensors["y"].dtype is WIDE


def test_what_has_no_kernel_in_the_narrow_type_stays() -> None:
    """LRN has none in bf16."""
    graph = graph_of(lambda g: g.node("LRN", "y", g.input("x", (1, 16, 4, 4)), size=5))
    result, notes = rewritten(graph, "bf16", "ascend910b2")
    assert kinds(result) == ["LRN"] and "LRN stays in fp32" in notes[0]


def test_modify_mixlist() -> None:
    graph = graph_of(_layer_norm)
    changes = MixList(white=frozenset({"Softmax"}), black=frozenset({"MatMulV2"}),
                      not_black=frozenset({"Pow", "ReduceMeanD"}))  # fmt: skip
    result, notes = rewritten(graph, "allow_mix_precision", mixlist=changes)
    assert set(types(result).values()) == {"fp32"} and count(result, "Cast") == 0
    assert notes == ["modify-mixlist: the model has no Softmax"]
    free = MixList(not_black=frozenset({"Pow", "ReduceMean"}))
    result, _ = rewritten(graph, "allow_mix_precision", mixlist=free)
    assert set(types(result).values()) == {"fp16"} and count(result, "Cast") == 2
    with pytest.raises(UnsupportedError, match="fp16, which has no operator lists"):
        rewritten(graph, "force_fp16", mixlist=free)


def test_black_products_run_on_the_vector_unit() -> None:
    """As the 910A must: its cube takes no fp32."""
    graph = graph_of(_layer_norm)
    changes = MixList(black=frozenset({"MatMul"}))
    options = CompileOptions("allow_mix_precision", mixlist=changes)
    exe = api.compile_graph(graph, CHIPS["ascend910a"], options=options)
    assert any("MatMul in float32 runs on the vector unit" in text for text in exe.notes)


def test_names_of_the_modes() -> None:
    assert set(get_args(Precision)) == {*SHORT, *MODES}
    assert tuple(MODES) == PRECISION_MODES
    assert mode_named("must_keep_origin_dtype") is mode_named("fp32")
    assert mode_named("force_fp16") is mode_named("fp16")
    assert mode_named("allow_mix_precision_fp16") is mode_named("allow_mix_precision")
    assert [m.label for m in modes_of(CHIPS["ascend910a"])] == [
        "keep", "allow fp16", "mix fp16", "force fp16",
    ]  # fmt: skip
    assert len(modes_of(CHIPS["ascend910b2"])) == 7


@pytest.mark.parametrize("mode", ["allow_mix_precision_bf16", "allow_fp32_to_bf16"])
def test_bf16_without_the_cube(mode: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        rewritten(graph_of(_layer_norm), mode)
    what, allowed, fix = str(error.value).splitlines()
    assert f"{mode} on ascend910a: the cube takes float16" in what
    assert "bf16" not in allowed and "force_fp16" in allowed
    assert f"--precision-mode {mode.replace('_bf16', '')}" in fix


def test_an_unknown_mode() -> None:
    with pytest.raises(UnsupportedError, match="did you mean allow_mix_precision"):
        rewritten(graph_of(_layer_norm), "alow_mix_precision")


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_rewriting_keeps_the_rules(data: st.DataObject) -> None:
    """Random graphs and lists: one type a node, few Casts, the interface as it was."""

    def pick(options: Any) -> Any:
        return options[data.draw(st.integers(0, len(options) - 1))]

    graph = random_graph(pick, data.draw(st.integers(1, 8)))
    ops = st.frozensets(st.sampled_from((*UNARY, *BINARY, "MatMul", "Conv", "MaxPool")))
    white = data.draw(ops)
    mixlist = MixList(white=white, black=data.draw(ops) - white)
    result, _ = rewritten(graph, "allow_mix_precision", mixlist=mixlist)
    check_casts(result)
    for name in (*graph.inputs, *graph.outputs):
        assert result.tensors[name] == graph.tensors[name]
    old = {n.name: n for n in graph.nodes}
    for node in result.nodes:
        if node.name not in old or node.op_type == "Cast":
            continue
        before = old[node.name]
        at = [i for i, name in enumerate(before.inputs) if name in data_inputs(graph, before)]
        found = {result.tensors[node.inputs[i]].dtype for i in at}
        found |= {result.tensors[o].dtype for o, b in zip(node.outputs, before.outputs, strict=True)
                  if b in data_outputs(graph, before)}  # fmt: skip
        assert len(found) <= 1, node
    # Each tensor crosses at most once in each direction.
    sources = Counter(n.inputs[0] for n in result.nodes if n.name not in old)
    assert max(sources.values(), default=0) <= 1


MODELS = {
    "resnet18": build_model("resnet18", height=32, width=32),
    "bert-tiny": build_model("bert-tiny"),
    "layer-norm": graph_of(_layer_norm),
}
#: Largest error of an output over its largest value, by the type that a mode may use.
LIMITS = {WIDE: 1e-5, HALF: 5e-3, DType.BFLOAT16: 4e-2}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("chip", "mode"),
    [(chip, m.name) for chip in ("ascend910a", "ascend910b2") for m in modes_of(CHIPS[chip])],
)
def test_numbers(model: str, chip: str, mode: str) -> None:
    graph = MODELS[model]
    inputs = random_inputs(graph)
    exe = api.compile_graph(graph, CHIPS[chip], precision=mode)
    assert exe.precision == mode
    got = api.run(exe, CHIPS[chip], inputs=inputs).outputs
    for name, want in evaluate(graph, inputs).items():
        assert got[name].dtype == want.dtype
        found = api.compare(got[name], want)
        assert found.max_rel_err < LIMITS[mode_named(mode).narrow], (name, found)


@pytest.mark.parametrize("mode", ["allow_mix_precision", "allow_fp32_to_fp16"])
def test_numbers_tile_level(mode: str) -> None:
    graph = MODELS["layer-norm"]
    inputs = random_inputs(graph)
    exe = api.compile_graph(graph, CHIPS["ascend910a"], precision=mode)
    got = api.run(exe, CHIPS["ascend910a"], inputs=inputs, tile_level=True).outputs
    for name, want in evaluate(graph, inputs).items():
        assert api.compare(got[name], want).max_rel_err < LIMITS[HALF]
