"""Vision Transformer (Dosovitskiy et al., 2020). Names are those of Hugging Face's state dict."""

from __future__ import annotations

from math import sqrt

from npusim.errors import ModelError
from npusim.models.builder import GraphBuilder
from npusim.models.layers import (
    BRANCH_GAIN,
    IMAGE,
    QUERY_GAIN,
    attend,
    conv,
    dense,
    layer_norm,
    linear,
    split_heads,
)
from npusim.models.registry import model

EPSILON = 1e-6


@model("vit-b16", "ViT-B/16 image classifier: 12 layers, hidden 768 (86.6 M parameters)", IMAGE)
def vit_b16(
    g: GraphBuilder,
    *,
    batch: int = 1,
    height: int = 224,
    width: int = 224,
    classes: int = 1000,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    patch: int = 16,
) -> None:
    """Patches of 16x16 pixels and a class token through an encoder; the class token is read.

    Gelu is written as exporters do: 0.5 · x · (1 + erf(x / √2)).
    """
    if hidden % heads or height % patch or width % patch:
        raise ModelError(
            f"a ViT of {heads} heads, hidden {hidden}, and patches of {patch} in {height}x{width}",
            "hidden a multiple of heads, height and width multiples of patch",
            "change one of them",
        )
    x = g.input("input", (batch, 3, height, width))
    x = _embeddings(g, x, batch, hidden, patch)
    g.ints("heads.shape", (batch, -1, heads, hidden // heads))
    g.ints("merged.shape", (batch, -1, hidden))
    g.constant("attention.scale", 1 / sqrt(hidden // heads))
    for name, value in (("half", 0.5), ("one", 1.0), ("sqrt2", sqrt(2))):
        g.constant(f"gelu.{name}", value)
    for i in range(layers):
        x = _layer(g, x, f"encoder.layer.{i}")
    x = layer_norm(g, x, "layernorm", EPSILON)
    first = g.node("Gather", "first", x, g.ints("first.index", 0), axis=1)
    g.output(dense(g, first, "classifier", classes, out="output"))


def _embeddings(g: GraphBuilder, x: str, batch: int, hidden: int, patch: int) -> str:
    """Patches (batch, patches, hidden) behind the class token, and the positions added."""
    name = "embeddings.patch_embeddings.projection"
    x = conv(g, x, name, hidden, patch, stride=patch, pad=0, gain=1.0, bias=True)
    x = g.node("Reshape", "embeddings.flatten", x, g.ints("patches.shape", (batch, hidden, -1)))
    x = g.node("Transpose", "embeddings.transpose", x, perm=[0, 2, 1])
    token = g.weight("embeddings.cls_token", (1, 1, hidden), std=1.0)
    token = g.node("Expand", "embeddings.expand", token, g.ints("token.shape", (batch, 1, hidden)))
    x = g.node("Concat", "embeddings.concat", token, x, axis=1)
    shape = (1, *g.shape(x)[1:])
    positions = g.weight("embeddings.position_embeddings", shape, std=0.5)
    return g.node("Add", "embeddings.add", x, positions)


def _layer(g: GraphBuilder, x: str, name: str) -> str:
    """Attention and feed-forward, each behind its LayerNormalization and with its residual."""
    y = layer_norm(g, x, f"{name}.layernorm_before", EPSILON)
    y = _attention(g, y, f"{name}.attention.attention")
    y = linear(g, y, f"{name}.attention.output.dense", g.shape(x)[-1], BRANCH_GAIN)
    x = g.node("Add", f"{name}.attention.output.add", y, x)
    y = layer_norm(g, x, f"{name}.layernorm_after", EPSILON)
    y = linear(g, y, f"{name}.intermediate.dense", 4 * g.shape(x)[-1])
    y = _gelu(g, y, f"{name}.intermediate.gelu")
    y = linear(g, y, f"{name}.output.dense", g.shape(x)[-1], BRANCH_GAIN)
    return g.node("Add", f"{name}.output.add", y, x)


def _attention(g: GraphBuilder, x: str, name: str) -> str:
    parts = []
    for part, perm in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
        gain = QUERY_GAIN if part == "query" else 1.0
        y = linear(g, x, f"{name}.{part}", g.shape(x)[-1], gain)
        parts.append(split_heads(g, y, f"{name}.{part}", "heads.shape", perm))
    q, k, v = parts
    return attend(g, q, k, v, name, "attention.scale", "", "merged.shape")


def _gelu(g: GraphBuilder, x: str, name: str) -> str:
    y = g.node("Div", f"{name}.div", x, "gelu.sqrt2")
    y = g.node("Add", f"{name}.add", g.node("Erf", f"{name}.erf", y), "gelu.one")
    return g.node("Mul", f"{name}.half", g.node("Mul", f"{name}.mul", x, y), "gelu.half")
