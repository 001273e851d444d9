"""A Llama-style decoder (Touvron et al., 2023), in its two phases.

RMSNorm, rotary positions, grouped keys and values, SwiGLU. `llama` reads a prompt and returns the
cache; `llama-decode` adds one token to a cache. The default is small (4 layers, hidden 512, 8 heads
on 2 of keys and values); TinyLlama-1.1B is layers=22 hidden=2048 heads=32 kv_heads=4
intermediate=5632. Names are those of Hugging Face's state dict, and Optimum's for the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

from npusim.errors import ModelError
from npusim.ir import DType
from npusim.models.builder import GraphBuilder
from npusim.models.layers import (
    BRANCH_GAIN,
    QUERY_GAIN,
    attend,
    causal_mask,
    linear,
    split_heads,
)
from npusim.models.registry import model

EPSILON = 1e-5
THETA = 10000.0  #: base of the rotary angles

CACHE = ("batch", "kv_heads", "past", "head_size")


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a decoder, and of what it is given."""

    batch: int
    seq: int
    past: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocab: int


@model(
    "llama",
    "Llama-style decoder reading a prompt: 4 layers, hidden 512 (44.0 M parameters)",
    {"input_ids": ("batch", "seq")},
)
def llama(
    g: GraphBuilder,
    *,
    batch: int = 1,
    seq: int = 128,
    layers: int = 4,
    hidden: int = 512,
    heads: int = 8,
    kv_heads: int = 2,
    head_size: int = 64,
    intermediate: int = 1408,
    vocab: int = 32000,
) -> None:
    """Logits of every token, and the keys and values of every layer."""
    sizes = (layers, hidden, heads, kv_heads, head_size, intermediate, vocab)
    _llama(g, LlamaConfig(batch, seq, 0, *sizes))


@model(
    "llama-decode",
    "Llama-style decoder adding one token to a KV cache (44.0 M parameters)",
    {
        "input_ids": ("batch", 1),
        "past_key_values.{layer}.key": CACHE,
        "past_key_values.{layer}.value": CACHE,
    },
)
def llama_decode(
    g: GraphBuilder,
    *,
    batch: int = 1,
    past: int = 128,
    layers: int = 4,
    hidden: int = 512,
    heads: int = 8,
    kv_heads: int = 2,
    head_size: int = 64,
    intermediate: int = 1408,
    vocab: int = 32000,
) -> None:
    """Logits of one token behind `past` others, and the cache with it."""
    sizes = (layers, hidden, heads, kv_heads, head_size, intermediate, vocab)
    _llama(g, LlamaConfig(batch, 1, past, *sizes))


def _llama(g: GraphBuilder, c: LlamaConfig) -> None:
    if c.heads % c.kv_heads or c.head_size % 2:
        raise ModelError(
            f"a Llama of {c.heads} heads on {c.kv_heads} of keys and values, of size {c.head_size}",
            "heads a multiple of kv_heads, an even head_size",
            "change one of them",
        )
    ids = g.input("input_ids", (c.batch, c.seq), DType.INT64)
    table = g.weight("model.embed_tokens.weight", (c.vocab, c.hidden), std=1.0)
    x = g.node("Gather", "model.embed_tokens", table, ids, axis=0)
    _constants(g, c)
    mask = causal_mask(g, c.seq, c.past) if c.seq > 1 else ""
    presents: list[str] = []
    for i in range(c.layers):
        x = _layer(g, c, x, mask, i, presents)
    x = _rms_norm(g, x, "model.norm")
    w = g.weight("lm_head.weight", (c.hidden, c.vocab), std=1 / sqrt(c.hidden))
    g.output(g.node("MatMul", "lm_head", x, w, out="logits"), *presents)


def _constants(g: GraphBuilder, c: LlamaConfig) -> None:
    """Shapes, scalars, and the rotary tables cos and sin (1, 1, seq, head_size)."""
    g.ints("heads.shape", (c.batch, c.seq, c.heads, c.head_size))
    g.ints("merged.shape", (c.batch, c.seq, c.heads * c.head_size))
    total = c.past + c.seq
    g.ints("kv.shape", (c.batch, c.seq, c.kv_heads, c.head_size))
    g.ints("kv.axis", [2])
    g.ints("kv.groups", (c.batch, c.kv_heads, c.heads // c.kv_heads, total, c.head_size))
    g.ints("kv.repeated", (c.batch, c.heads, total, c.head_size))
    g.constant("attention.scale", 1 / sqrt(c.head_size))
    g.constant("norm.two", 2.0)
    g.constant("norm.epsilon", EPSILON)
    g.ints("norm.axis", [-1])
    for name, value in (("zero", 0), ("half", c.head_size // 2), ("all", c.head_size), ("axis", 3)):
        g.ints(f"rotary.{name}", [value])
    _rotary_tables(g, c)


def _rotary_tables(g: GraphBuilder, c: LlamaConfig) -> None:
    """The cosine and sine of position · θ^(-2i/size), each twice side by side, in fp32.

    Nothing but constants goes in, so compilers fold them.
    """
    half = c.head_size // 2
    position = g.ints("position_ids", [[[[p] for p in range(c.past, c.past + c.seq)]]])
    pair = g.ints("rotary.pair", [*range(half), *range(half)])
    position = g.node("Cast", "rotary.position", position, to="float32")
    pair = g.node("Cast", "rotary.exponent", pair, to="float32")
    step = g.constant("rotary.step", -log(THETA) / half, DType.FLOAT32)
    frequency = g.node("Exp", "rotary.frequency", g.node("Mul", "rotary.power", pair, step))
    angle = g.node("Mul", "rotary.angle", position, frequency)
    for op_type in ("Cos", "Sin"):
        table = g.node(op_type, f"rotary.{op_type.lower()}.fp32", angle)
        g.node("Cast", f"rotary.{op_type.lower()}", table, to=g.dtype.value)


def _layer(
    g: GraphBuilder, c: LlamaConfig, x: str, mask: str, index: int, presents: list[str]
) -> str:
    """Attention and feed-forward, each behind its RMSNorm and with its residual."""
    name = f"model.layers.{index}"
    y = _rms_norm(g, x, f"{name}.input_layernorm")
    y = _attention(g, c, y, mask, index, presents)
    y = linear(g, y, f"{name}.self_attn.o_proj", c.hidden, BRANCH_GAIN, bias=False)
    x = g.node("Add", f"{name}.self_attn.residual", x, y)
    y = _rms_norm(g, x, f"{name}.post_attention_layernorm")
    return g.node("Add", f"{name}.mlp.residual", x, _mlp(g, c, y, f"{name}.mlp"))


def _rms_norm(g: GraphBuilder, x: str, name: str) -> str:
    """x / √(mean(x²) + ε) · weight, step by step, as exporters write it."""
    y = g.node("Pow", f"{name}.pow", x, "norm.two")
    y = g.node("ReduceMean", f"{name}.mean", y, "norm.axis", keepdims=1)
    y = g.node("Sqrt", f"{name}.sqrt", g.node("Add", f"{name}.add", y, "norm.epsilon"))
    y = g.node("Mul", f"{name}.mul", x, g.node("Reciprocal", f"{name}.reciprocal", y))
    weight = g.weight(f"{name}.weight", g.shape(x)[-1:], std=0.1, mean=1.0)
    return g.node("Mul", f"{name}.scale", weight, y)


def _attention(
    g: GraphBuilder, c: LlamaConfig, x: str, mask: str, index: int, presents: list[str]
) -> str:
    """Rotated queries on the cached and the new keys and values."""
    name, order = f"model.layers.{index}.self_attn", (0, 2, 1, 3)
    q = linear(g, x, f"{name}.q_proj", c.heads * c.head_size, QUERY_GAIN, bias=False)
    q = _rotate(g, split_heads(g, q, f"{name}.q", "heads.shape", order), f"{name}.q.rotary")
    cached = []
    for part in ("key", "value"):
        y = linear(g, x, f"{name}.{part[0]}_proj", c.kv_heads * c.head_size, bias=False)
        y = split_heads(g, y, f"{name}.{part[0]}", "kv.shape", order)
        if part == "key":
            y = _rotate(g, y, f"{name}.k.rotary")
        y = _remember(g, c, y, index, part)
        presents.append(y)
        cached.append(_repeat(g, c, y, f"{name}.{part}.repeat"))
    k = g.node("Transpose", f"{name}.k.turn", cached[0], perm=[0, 1, 3, 2])
    return attend(g, q, k, cached[1], name, "attention.scale", mask, "merged.shape")


def _rotate(g: GraphBuilder, x: str, name: str) -> str:
    """x · cos + (-second half, first half) · sin."""
    first = g.node("Slice", f"{name}.first", x, "rotary.zero", "rotary.half", "rotary.axis")
    second = g.node("Slice", f"{name}.second", x, "rotary.half", "rotary.all", "rotary.axis")
    second = g.node("Neg", f"{name}.neg", second)
    turned = g.node("Concat", f"{name}.concat", second, first, axis=-1)
    straight = g.node("Mul", f"{name}.cos", x, "rotary.cos")
    return g.node(
        "Add", f"{name}.add", straight, g.node("Mul", f"{name}.sin", turned, "rotary.sin")
    )


def _remember(g: GraphBuilder, c: LlamaConfig, new: str, index: int, part: str) -> str:
    """The cache with the new keys or values behind it: a graph output."""
    name, present = f"past_key_values.{index}.{part}", f"present.{index}.{part}"
    if not c.past:
        return g.node("Identity", f"{present}.identity", new, out=present)
    past = g.input(name, (c.batch, c.kv_heads, c.past, c.head_size))
    return g.node("Concat", f"{present}.concat", past, new, out=present, axis=2)


def _repeat(g: GraphBuilder, c: LlamaConfig, x: str, name: str) -> str:
    """Each head of keys or values for all the query heads of its group."""
    if c.heads == c.kv_heads:
        return x
    y = g.node("Unsqueeze", f"{name}.unsqueeze", x, "kv.axis")
    y = g.node("Expand", f"{name}.expand", y, "kv.groups")
    return g.node("Reshape", f"{name}.reshape", y, "kv.repeated")


def _mlp(g: GraphBuilder, c: LlamaConfig, x: str, name: str) -> str:
    """SwiGLU: (gate · sigmoid(gate)) · up, projected back."""
    gate = linear(g, x, f"{name}.gate_proj", c.intermediate, bias=False)
    up = linear(g, x, f"{name}.up_proj", c.intermediate, bias=False)
    y = g.node("Sigmoid", f"{name}.sigmoid", gate)
    y = g.node("Mul", f"{name}.mul", g.node("Mul", f"{name}.silu", gate, y), up)
    return linear(g, y, f"{name}.down_proj", c.hidden, BRANCH_GAIN, bias=False)
