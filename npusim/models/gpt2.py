"""GPT-2 (Radford et al., 2019) with its language head. Names are those of Hugging Face's."""

from __future__ import annotations

from math import pi, sqrt

from npusim.errors import ModelError
from npusim.ir import DType
from npusim.models.builder import GraphBuilder
from npusim.models.layers import (
    BRANCH_GAIN,
    QUERY_GAIN,
    attend,
    causal_mask,
    layer_norm,
    linear,
    split_heads,
)
from npusim.models.registry import model

EPSILON = 1e-5
POSITIONS = 1024


@model(
    "gpt2-small",
    "GPT-2 small: 12 layers, hidden 768 (124.4 M parameters)",
    {"input_ids": ("batch", "seq")},
)
def gpt2_small(
    g: GraphBuilder,
    *,
    batch: int = 1,
    seq: int = 128,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocab: int = 50257,
) -> None:
    """Logits (batch, seq, vocab) of a causal decoder; the head's weights are the embeddings'.

    Gelu is written as exporters do: 0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))).
    """
    if seq > POSITIONS or hidden % heads:
        raise ModelError(
            f"GPT-2 with {seq} tokens, hidden {hidden} and {heads} heads",
            f"up to {POSITIONS} tokens, hidden a multiple of heads",
            "use a shorter sequence, or another number of heads",
        )
    ids = g.input("input_ids", (batch, seq), DType.INT64)
    words = g.weight("wte.weight", (vocab, hidden), std=0.2)
    table = g.weight("wpe.weight", (POSITIONS, hidden), std=0.1)
    positions = g.node("Gather", "wpe", table, g.ints("position_ids", [list(range(seq))]), axis=0)
    x = g.node("Add", "embeddings", g.node("Gather", "wte", words, ids, axis=0), positions)
    _constants(g, batch, seq, hidden, heads)
    mask = causal_mask(g, seq)
    for i in range(layers):
        x = _block(g, x, mask, f"h.{i}")
    x = layer_norm(g, x, "ln_f", EPSILON)
    head = g.node("Transpose", "lm_head.transpose", words, perm=[1, 0])
    g.output(g.node("MatMul", "lm_head", x, head, out="logits"))


def _constants(g: GraphBuilder, batch: int, seq: int, hidden: int, heads: int) -> None:
    g.ints("heads.shape", (batch, seq, heads, hidden // heads))
    g.ints("merged.shape", (batch, seq, hidden))
    g.constant("attention.scale", 1 / sqrt(hidden // heads))
    for name, value in (("half", 0.5), ("one", 1.0), ("three", 3.0), ("cubic", 0.044715)):
        g.constant(f"gelu.{name}", value)
    g.constant("gelu.scale", sqrt(2 / pi))


def _block(g: GraphBuilder, x: str, mask: str, name: str) -> str:
    """Attention and feed-forward, each behind its LayerNormalization and with its residual."""
    hidden = g.shape(x)[-1]
    y = _attention(g, layer_norm(g, x, f"{name}.ln_1", EPSILON), mask, f"{name}.attn")
    y = linear(g, y, f"{name}.attn.c_proj", hidden, BRANCH_GAIN)
    x = g.node("Add", f"{name}.attn.residual", y, x)
    y = linear(g, layer_norm(g, x, f"{name}.ln_2", EPSILON), f"{name}.mlp.c_fc", 4 * hidden)
    y = linear(g, _gelu(g, y, f"{name}.mlp.act"), f"{name}.mlp.c_proj", hidden, BRANCH_GAIN)
    return g.node("Add", f"{name}.mlp.residual", y, x)


def _attention(g: GraphBuilder, x: str, mask: str, name: str) -> str:
    """Queries, keys and values by one product, then split."""
    hidden = g.shape(x)[-1]
    y = linear(g, x, f"{name}.c_attn", 3 * hidden, sqrt(QUERY_GAIN))
    q, k, v = g.split(f"{name}.split", y, [hidden] * 3, axis=2)
    q = split_heads(g, q, f"{name}.query", "heads.shape", [0, 2, 1, 3])
    k = split_heads(g, k, f"{name}.key", "heads.shape", [0, 2, 3, 1])
    v = split_heads(g, v, f"{name}.value", "heads.shape", [0, 2, 1, 3])
    return attend(g, q, k, v, name, "attention.scale", mask, "merged.shape")


def _gelu(g: GraphBuilder, x: str, name: str) -> str:
    y = g.node("Pow", f"{name}.pow", x, "gelu.three")
    y = g.node("Add", f"{name}.inner", x, g.node("Mul", f"{name}.cubic", y, "gelu.cubic"))
    y = g.node("Tanh", f"{name}.tanh", g.node("Mul", f"{name}.scale", y, "gelu.scale"))
    half = g.node("Mul", f"{name}.half", x, "gelu.half")
    return g.node("Mul", f"{name}.mul", half, g.node("Add", f"{name}.add", y, "gelu.one"))
