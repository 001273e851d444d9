"""DeepFM (Guo et al., 2017): a factorisation machine and a deep network on shared embeddings."""

from __future__ import annotations

from math import sqrt

from npusim.ir import DType
from npusim.models.builder import GraphBuilder
from npusim.models.layers import RELU, dense
from npusim.models.registry import model

WIDTHS = (400, 400, 400)  #: of the deep network, as in the paper


@model(
    "deepfm",
    "DeepFM click-through model on 39 fields as Criteo's (1.8 M parameters)",
    {"feature_index": ("batch", "fields"), "feature_value": ("batch", "fields")},
)
def deepfm(
    g: GraphBuilder,
    *,
    batch: int = 128,
    fields: int = 39,
    features: int = 117581,
    embedding: int = 10,
) -> None:
    """Click probability (batch, 1) of feature numbers and values, one a field.

    `features` is the number of all features of all fields, 117,581 in a common cut of Criteo's.
    """
    index = g.input("feature_index", (batch, fields), DType.INT64)
    value = g.input("feature_value", (batch, fields))
    value = g.node("Unsqueeze", "value.unsqueeze", value, g.ints("value.axis", [2]))
    g.ints("fields.axis", [1])
    weights = _rows(g, "weights", index, value, features, 1, 1 / sqrt(fields))
    first = g.node("ReduceSum", "first_order", weights, "fields.axis", keepdims=0)
    factors = _rows(g, "embeddings", index, value, features, embedding, 1.0)
    second = _second_order(g, factors, fields, embedding)
    deep = _deep(g, factors, batch)
    y = g.node("Add", "sum.orders", first, second)
    y = g.node("Add", "sum.deep", y, deep)
    g.output(g.node("Sigmoid", "sigmoid", y, out="output"))


def _rows(
    g: GraphBuilder, name: str, index: str, value: str, features: int, width: int, std: float
) -> str:
    """Rows of a table times the features' values, (batch, fields, width)."""
    table = g.weight(f"{name}.weight", (features, width), std=std)
    return g.node("Mul", f"{name}.mul", g.node("Gather", name, table, index, axis=0), value)


def _second_order(g: GraphBuilder, factors: str, fields: int, embedding: int) -> str:
    """All products of two fields' factors: ½ · Σ((Σv)² - Σv²), (batch, 1).

    The factors are scaled down first, so that the sum stays of order 1.
    """
    scale = g.constant("fm.scale", 1 / sqrt(fields * sqrt(embedding)))
    x = g.node("Mul", "fm.scaled", factors, scale)
    total = g.node("ReduceSum", "fm.sum", x, "fields.axis", keepdims=0)
    squared = g.node("Mul", "fm.sum.square", total, total)
    squares = g.node(
        "ReduceSum", "fm.squares", g.node("Mul", "fm.square", x, x), "fields.axis", keepdims=0
    )
    y = g.node("Sub", "fm.sub", squared, squares)
    y = g.node("ReduceSum", "fm.reduce", y, "fields.axis", keepdims=1)
    return g.node("Mul", "second_order", y, g.constant("fm.half", 0.5))


def _deep(g: GraphBuilder, factors: str, batch: int) -> str:
    """Linear layers with Relu over all fields' factors, (batch, 1)."""
    x = g.node("Reshape", "deep.flatten", factors, g.ints("deep.shape", (batch, -1)))
    gain = 1.0
    for i, width in enumerate(WIDTHS):
        x = g.node("Relu", f"deep.{i}.relu", dense(g, x, f"deep.{i}", width, gain))
        gain = sqrt(RELU)
    return dense(g, x, "deep.output", 1, gain)
