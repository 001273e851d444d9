"""Models of one operator, for the study of a kernel by itself."""

from __future__ import annotations

from npusim.models.builder import GraphBuilder
from npusim.models.registry import model

ROWS = {"x": ("rows", "columns")}
FACTORS = {"A": ("m", "k"), "B": ("k", "n")}


@model("gemm", "one matrix product, C (m, n) = A (m, k) · B (k, n)", FACTORS)
def gemm(g: GraphBuilder, *, m: int = 1024, n: int = 1024, k: int = 1024) -> None:
    """A MatMul of two inputs."""
    g.output(g.node("MatMul", "matmul", g.input("A", (m, k)), g.input("B", (k, n)), out="C"))


@model("relu", "one Relu: reads and writes every element once", ROWS)
def relu(g: GraphBuilder, *, rows: int = 4096, columns: int = 1024) -> None:
    """A Relu."""
    g.output(g.node("Relu", "relu", g.input("x", (rows, columns)), out="y"))


@model("softmax", "one Softmax over the columns", ROWS)
def softmax(g: GraphBuilder, *, rows: int = 4096, columns: int = 1024) -> None:
    """A Softmax."""
    g.output(g.node("Softmax", "softmax", g.input("x", (rows, columns)), out="y", axis=-1))


@model("layernorm", "one LayerNormalization over the columns", ROWS)
def layernorm(g: GraphBuilder, *, rows: int = 4096, columns: int = 1024) -> None:
    """A LayerNormalization with scale and bias."""
    x = g.input("x", (rows, columns))
    gamma = g.weight("scale", (columns,), std=0.1, mean=1.0)
    beta = g.weight("bias", (columns,), std=0.1)
    g.output(g.node("LayerNormalization", "layernorm", x, gamma, beta, out="y", axis=-1))
