"""Graph: what the verifier refuses, what the printer shows, lazy constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from npusim.errors import GraphError
from npusim.ir import (
    Constant,
    DType,
    EpilogueStep,
    Graph,
    Layout,
    Node,
    Tensor,
    TensorType,
    format_graph,
    verify,
)

F16, F32 = DType.FLOAT16, DType.FLOAT32


def small() -> Graph:
    """y = relu(x @ w), z = x + b."""
    tensors = [
        Tensor("x", (2, 3), F32), Tensor("w", (3, 4), F32, Layout.FRACTAL_NZ),
        Tensor("y", (2, 4), F16), Tensor("b", (3,), F32), Tensor("z", (2, 3), F32),
    ]  # fmt: skip
    nodes = [
        Node("mm", "MatMul", ("x", "w"), ("y",), {"b": 2, "a": 1}, (EpilogueStep("Relu"),)),
        Node("add", "Add", ("x", "b"), ("z",)),
    ]
    constants = {
        "w": Constant.full((3, 4), 0.5, F32),
        "b": Constant.of(np.arange(3, dtype=np.float32)),
    }
    return Graph("small", nodes, {t.name: t for t in tensors}, ["x"], ["y", "z"], constants)


def test_a_good_graph_passes() -> None:
    graph = small()
    assert verify(graph) is graph
    assert graph.producers()["y"].name == "mm"
    assert [n.name for n in graph.consumers()["x"]] == ["mm", "add"]
    assert [n.name for n in graph] == ["mm", "add"]
    assert graph.type_of("x") == TensorType((2, 3), F32)


def swap(g: Graph) -> None:
    g.nodes[0] = g.nodes[0].with_(inputs=("z", "w"))


def rename(g: Graph) -> None:
    g.nodes[1] = g.nodes[1].with_(name="mm")


def twice(g: Graph) -> None:
    g.nodes[1] = g.nodes[1].with_(outputs=("y",))


def overwrite(g: Graph) -> None:
    g.nodes[1] = g.nodes[1].with_(outputs=("x",))


def untyped(g: Graph) -> None:
    del g.tensors["z"]


def untyped_inner(g: Graph) -> None:
    g.outputs = ["y"]
    del g.tensors["z"]


def never(g: Graph) -> None:
    g.nodes.pop()


def misnamed(g: Graph) -> None:
    g.tensors["z"] = g.tensors["x"]


def retyped(g: Graph) -> None:
    g.tensors["b"] = replace(g.tensors["b"], dtype=F16)


def flattened(g: Graph) -> None:
    g.tensors["y"] = replace(g.tensors["y"], layout=Layout.NC1HWC0)


def without_operand(g: Graph) -> None:
    g.nodes[1] = g.nodes[1].with_(epilogue=(EpilogueStep("Add", 2),))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (swap, "'mm' (MatMul) reads 'z', which nothing made before"),
        (rename, "two nodes named 'mm'"),
        (twice, "'add' makes 'y', which exists already"),
        (overwrite, "'add' makes 'x', which exists already"),
        (untyped, "names tensor 'z', which has no type"),
        (untyped_inner, "node 'add' names tensor 'z', which has no type"),
        (never, "graph output 'z' is never made"),
        (misnamed, "tensor 'z' calls itself 'x'"),
        (retyped, "constant 'b' is float32 (3,)"),
        (flattened, "layout NC1HWC0 for a tensor of shape (2, 4)"),
        (without_operand, "epilogue Add of node 'add' reads input 2"),
    ],
)
def test_the_verifier_names_what_is_wrong(damage: Callable[[Graph], None], text: str) -> None:
    graph = small()
    damage(graph)
    with pytest.raises(GraphError) as error:
        verify(graph)
    assert text in error.value.what
    assert len(str(error.value).splitlines()) == 3


def test_absent_inputs_and_outputs_are_allowed() -> None:
    graph = small()
    graph.nodes[1] = graph.nodes[1].with_(inputs=("x", "", "b"), outputs=("z", ""))
    verify(graph)


def test_a_copy_is_independent() -> None:
    graph = small()
    copy = graph.copy()
    copy.nodes.pop()
    copy.outputs.remove("z")
    copy.tensors["x"] = replace(copy.tensors["x"], shape=(9, 3))
    assert len(graph.nodes) == 2
    assert verify(graph).tensors["x"].shape == (2, 3)


def test_the_printer_shows_one_node_a_line() -> None:
    assert format_graph(small()).splitlines() == [
        "graph small",
        "  input  x:float32[2,3]",
        "  const  w:float32[3,4]:FRACTAL_NZ",
        "  const  b:float32[3]",
        "  y:float16[2,4] = MatMul(x, w) a=1 b=2 + Relu",
        "  z:float32[2,3] = Add(x, b)",
        "  output y, z",
    ]
    assert repr(small()) == (
        "Graph('small', 2 nodes, 2 constants, inputs=['x'], outputs=['y', 'z'])"
    )


def test_constants_are_made_when_asked_for() -> None:
    made = []

    def make() -> np.ndarray:
        made.append(1)
        return np.ones((2, 2), np.float32)

    lazy = Constant(TensorType((2, 2), F32), make)
    half = lazy.map(lambda a: (a * 3).astype(np.float16), TensorType((2, 2), F16))
    assert not made
    np.testing.assert_array_equal(half.value(), np.full((2, 2), 3, np.float16))
    assert made == [1]
    full = Constant.full((1000, 1000), 2.5, F16)
    assert (full.fill, full.value().shape, full.value()[3, 4]) == (2.5, (1000, 1000), 2.5)
    assert full.value().base is not None  # no memory of its own


def test_tensors_know_their_bytes_on_the_device() -> None:
    image = Tensor("x", (1, 3, 4, 5), F16, Layout.NC1HWC0)
    assert image.storage_shape == (1, 1, 4, 5, 16)
    assert image.nbytes == 4 * 5 * 16 * 2
    assert image.type.size == 60
