"""Operators imported as others: Einsum, optimisers, and training mode, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from npusim.frontends.onnx_import import load_onnx
from npusim.frontends.reference import evaluate
from npusim.ir import Graph


def imported(
    op_type: str, inputs: list[np.ndarray], outputs: int = 1, opset: int = 21, **attrs: Any
) -> tuple[Graph, list[np.ndarray]]:
    """The graph of one node, and what it computes."""
    names = [f"x{i}" for i in range(len(inputs))]
    given = dict(zip(names, inputs, strict=True))
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
    ]
    out = [f"y{i}" for i in range(outputs)]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in out]
    node = helper.make_node(op_type, names, out, **attrs)
    model = helper.make_model(
        helper.make_graph([node], "g", values, made),
        opset_imports=[helper.make_opsetid("", opset)],
    )
    graph = load_onnx(model, values=given)
    found = evaluate(graph, given)
    return graph, [found[n] for n in out]


def random(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(map(len, shapes)))
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 8), (2, 3, 5, 8)]),
        ("bqhd,bkhd->bhqk", [(2, 4, 3, 8), (2, 5, 3, 8)]),
        ("...ij,...jk->...ik", [(2, 3, 4, 5), (2, 3, 5, 6)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("ba,cb", [(3, 4), (5, 3)]),
        ("i,j->ij", [(3,), (4,)]),
        ("i,i->", [(7,), (7,)]),
        ("ij->ji", [(3, 4)]),
        ("ijk->k", [(3, 4, 5)]),
        ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]),
        ("ij,kl,jl->ik", [(3, 4), (5, 6), (4, 6)]),
        ("aij,bi->ab", [(2, 3, 4), (5, 3)]),
        ("ij,ij->ij", [(3, 4), (3, 4)]),
        ("->", [()]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    x = random(*shapes)
    graph, (y,) = imported("Einsum", x, equation=equation)
    assert "Einsum" not in {n.op_type for n in graph.nodes}
    want = np.einsum(equation, *x)
    assert y.shape == want.shape
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"), [("ii->i", [(4, 4)]), ("...ij,...jk->...ik", [(1, 3, 4), (2, 4, 5)])]
)
def test_einsum_that_stays(equation: str, shapes: list[tuple[int, ...]]) -> None:
    x = random(*shapes)
    graph, (y,) = imported("Einsum", x, equation=equation)
    assert [n.op_type for n in graph.nodes] == ["Einsum"]
    np.testing.assert_allclose(y, np.einsum(equation, *x), rtol=1e-5, atol=1e-5)


def test_normalizations_of_zeros_and_large_means() -> None:
    (x,) = random((2, 5, 4, 3))
    x[0] = 0
    for p in (1, 2):
        _, (y,) = imported("LpNormalization", [x], axis=1, p=p)
        norm = np.linalg.norm(x, p, axis=1, keepdims=True)
        np.testing.assert_allclose(y, x / np.where(norm == 0, 1, norm), rtol=1e-5)
    x = x + 100
    _, (y,) = imported("MeanVarianceNormalization", [x[1:]])
    want = (x[1:] - x[1:].mean((0, 2, 3), keepdims=True)) / x[1:].std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("k", "upper"), [(0, 1), (-2, 0), (3, 1), (100, 0)])
def test_triangles(k: int, upper: int) -> None:
    (x,) = random((2, 6, 4))
    x[0, 0, 0] = np.inf
    graph, (y,) = imported("Trilu", [x, np.array(k, np.int64)], upper=upper)
    assert [n.op_type for n in graph.nodes] == ["Where"]
    np.testing.assert_array_equal(y, (np.triu if upper else np.tril)(x, k))


def test_dropout_in_training_keeps_the_seed() -> None:
    (x,) = random((40, 50))
    ratio, training = np.array(0.25, np.float32), np.array(True)
    graph, (y, mask) = imported("Dropout", [x, ratio, training], 2, seed=7)
    assert [n.op_type for n in graph.nodes][-2:] == ["DropOutGenMask", "DropOutDoMask"]
    assert 0.7 < mask.mean() < 0.8
    np.testing.assert_allclose(y, np.where(mask, x / 0.75, 0), rtol=1e-6)
    _, (again, _) = imported("Dropout", [x, ratio, training], 2, seed=7)
    np.testing.assert_array_equal(y, again)


def test_batch_statistics() -> None:
    x, scale, bias, mean = random((4, 3, 5, 6), (3,), (3,), (3,))
    variance = np.ones(3, np.float32)
    _, (y, new_mean, new_variance) = imported(
        "BatchNormalization", [x, scale, bias, mean, variance], 3, training_mode=1, momentum=0.75
    )
    m, v = x.mean((0, 2, 3)), x.var((0, 2, 3))
    np.testing.assert_allclose(new_mean, mean * 0.75 + m * 0.25, rtol=1e-5)
    np.testing.assert_allclose(new_variance, 0.75 + v * 0.25, rtol=1e-5)
    unit = (x - m[:, None, None]) / np.sqrt(v + 1e-5)[:, None, None]
    want = unit * scale[:, None, None] + bias[:, None, None]
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
