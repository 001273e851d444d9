"""BERT encoders (Devlin et al., 2018) with pooler, as Hugging Face's `BertModel` computes them.

Names are those of its state dict.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from npusim.errors import ModelError
from npusim.ir import DType
from npusim.models.builder import GraphBuilder
from npusim.models.layers import (
    BRANCH_GAIN,
    QUERY_GAIN,
    attend,
    layer_norm,
    linear,
    split_heads,
)
from npusim.models.registry import model

TOKENS = ("batch", "seq")
INPUTS = {"input_ids": TOKENS, "attention_mask": TOKENS, "token_type_ids": TOKENS}


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT."""

    layers: int
    hidden: int
    heads: int
    vocab: int = 30522
    positions: int = 512
    token_types: int = 2
    epsilon: float = 1e-12

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


@model("bert-tiny", "BERT-Tiny encoder: 2 layers, hidden 128 (4.4 M parameters)", INPUTS)
def bert_tiny(g: GraphBuilder, *, batch: int = 1, seq: int = 128) -> None:
    """Two layers."""
    encoder(g, BertConfig(layers=2, hidden=128, heads=2), batch, seq)


@model("bert-base", "BERT-Base encoder: 12 layers, hidden 768 (109.5 M parameters)", INPUTS)
def bert_base(g: GraphBuilder, *, batch: int = 1, seq: int = 128) -> None:
    """Twelve layers."""
    encoder(g, BertConfig(layers=12, hidden=768, heads=12), batch, seq)


@model("bert-large", "BERT-Large encoder: 24 layers, hidden 1024 (335.1 M parameters)", INPUTS)
def bert_large(g: GraphBuilder, *, batch: int = 1, seq: int = 128) -> None:
    """Twenty-four layers."""
    encoder(g, BertConfig(layers=24, hidden=1024, heads=16), batch, seq)


def encoder(g: GraphBuilder, config: BertConfig, batch: int, seq: int) -> None:
    """A BERT of any size, its inputs and outputs included.

    Raises:
        ModelError: `seq` is more than the positions.
    """
    if seq > config.positions:
        raise ModelError(
            f"sequence length {seq} of a BERT",
            f"up to {config.positions}: its table of positions is no longer",
            "use a shorter sequence",
        )
    for name in INPUTS:
        g.input(name, (batch, seq), DType.INT64)
    mask = _extended_mask(g)
    g.ints("heads.shape", (batch, seq, config.heads, config.head_size))
    g.ints("merged.shape", (batch, seq, config.hidden))
    g.constant("attention.scale", 1 / sqrt(config.head_size))
    x = _embeddings(g, config, seq)
    for i in range(config.layers):
        out = "last_hidden_state" if i == config.layers - 1 else ""
        x = _layer(g, config, x, mask, f"encoder.layer.{i}", out)
    g.output(x, _pooler(g, config, x))


def _extended_mask(g: GraphBuilder) -> str:
    """(1 - attention_mask)·-10000, of shape (batch, 1, 1, seq): added to the scores."""
    x = g.node("Unsqueeze", "mask.unsqueeze", "attention_mask", g.ints("mask.axes", [1, 2]))
    x = g.node("Cast", "mask.cast", x, to=g.dtype.value)
    x = g.node("Sub", "mask.sub", g.constant("mask.one", 1.0), x)
    return g.node("Mul", "mask.mul", x, g.constant("mask.least", -10000.0))


def _embeddings(g: GraphBuilder, config: BertConfig, seq: int) -> str:
    """LayerNormalization(word + token type + position)."""
    g.ints("position_ids", [list(range(seq))])
    tables = (
        ("word", "input_ids", config.vocab),
        ("token_type", "token_type_ids", config.token_types),
        ("position", "position_ids", config.positions),
    )
    rows = []
    for kind, ids, size in tables:
        name = f"embeddings.{kind}_embeddings"
        table = g.weight(f"{name}.weight", (size, config.hidden), std=0.5)
        rows.append(g.node("Gather", name, table, ids, axis=0))
    x = g.node("Add", "embeddings.add_types", rows[0], rows[1])
    x = g.node("Add", "embeddings.add_positions", x, rows[2])
    return layer_norm(g, x, "embeddings.LayerNorm", config.epsilon)


def _layer(g: GraphBuilder, config: BertConfig, x: str, mask: str, name: str, out: str) -> str:
    """Attention and feed-forward, each with its residual and LayerNormalization."""
    y = _attention(g, x, mask, f"{name}.attention.self")
    y = linear(g, y, f"{name}.attention.output.dense", config.hidden, BRANCH_GAIN)
    y = g.node("Add", f"{name}.attention.output.add", y, x)
    x = layer_norm(g, y, f"{name}.attention.output.LayerNorm", config.epsilon)
    y = linear(g, x, f"{name}.intermediate.dense", 4 * config.hidden)
    y = g.node("Gelu", f"{name}.intermediate.gelu", y, approximate="none")
    y = linear(g, y, f"{name}.output.dense", config.hidden, BRANCH_GAIN)
    y = g.node("Add", f"{name}.output.add", y, x)
    return layer_norm(g, y, f"{name}.output.LayerNorm", config.epsilon, out)


def _attention(g: GraphBuilder, x: str, mask: str, name: str) -> str:
    """Attention over x, heads side by side in the result."""
    q = _heads(g, x, f"{name}.query", [0, 2, 1, 3], QUERY_GAIN)
    k = _heads(g, x, f"{name}.key", [0, 2, 3, 1])
    v = _heads(g, x, f"{name}.value", [0, 2, 1, 3])
    return attend(g, q, k, v, name, "attention.scale", mask, "merged.shape")


def _heads(g: GraphBuilder, x: str, name: str, perm: list[int], gain: float = 1.0) -> str:
    """A projection of x, split into heads, its axes permuted."""
    y = linear(g, x, name, g.shape(x)[-1], gain)
    return split_heads(g, y, name, "heads.shape", perm)


def _pooler(g: GraphBuilder, config: BertConfig, x: str) -> str:
    """tanh of a dense layer on each sequence's first token."""
    first = g.node("Gather", "pooler.first", x, g.ints("pooler.index", 0), axis=1)
    w = g.weight("pooler.dense.weight", (config.hidden,) * 2, std=1 / sqrt(config.hidden))
    b = g.weight("pooler.dense.bias", (config.hidden,), std=0.1)
    y = g.node("Gemm", "pooler.dense", first, w, b, transB=1)
    return g.node("Tanh", "pooler.activation", y, out="pooler_output")
