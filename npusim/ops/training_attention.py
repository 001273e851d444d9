"""Fused attention and its gradient, as CANN names them: the scores never leave the kernel.

out = softmax(scale · Q·Kᵀ, masked) · V, per query head; `head_num` query heads share the key and
value heads in equal groups. The statistics of the rows (maximum, and sum of exponentials below it)
are kept, eight times over (one 32 B block a row), for the gradient to compute the scores again.

Layouts of Q, K, V and the results: SBH (S, B, heads·D), BSH (B, S, heads·D), BSND (B, S, heads, D),
BNSD (B, heads, S, D).

Mask: 1 hides a score. `sparse_mode` 0 takes a (…, S1, S2) mask as it is and hides what lies more
than `next_tokens` right of the diagonal; 2 hides what lies right of the diagonal from the upper
left corner, 3 from the lower right one, both by a compressed triangle of 2048 × 2048.

Bias (CANN's `pse`, of its kind 1: multiply, then add): added to the scaled scores; (B, N, S1, S2)
with any of the first three axes 1. BERT's additive mask is one of shape (B, 1, 1, S2).

`first_heads` (npusim's own, with layout BSND): Q, K and V are heads of one tensor (B, S, heads, D)
each beginning at its own; `kv_head_num` says how many K and V have. A joint product of all three
is read in place so: no copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.errors import UnsupportedError
from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema

LAYOUTS = ("SBH", "BSH", "BSND", "BNSD")
STATS = 8  #: times that a row's statistic stands in memory: one 32 B block of fp32
COMPRESSED = 2048  #: side of the triangle that stands for any causal mask
HIDDEN = np.float32(np.finfo(np.float32).min)  #: score of what the mask hides
FAR = 2**31 - 1  #: next_tokens that hide nothing

_ATTRS: dict[str, Any] = {
    "head_num": ...,
    "input_layout": "BSH",
    "scale_value": 1.0,
    "sparse_mode": 0,
    "next_tokens": FAR,
    "first_heads": None,
    "kv_head_num": 0,
}


@dataclass(frozen=True)
class Shape:
    """Extents of an attention.

    Attributes:
        batch; heads, kv_heads: of queries, of keys and values; s1, s2: rows of queries, of keys;
        d: elements of a head; layout: of every operand in memory.
        reach: columns right of the diagonal (from the upper left) that a row sees.
        mask: "" none, "full" (…, S1, S2), "triangle" compressed.
        first: heads at which Q, K and V begin in their operands.
        stored: heads of those operands in memory where they are shared, else 0.
    """

    batch: int
    heads: int
    kv_heads: int
    s1: int
    s2: int
    d: int
    layout: str
    reach: int
    mask: str
    first: tuple[int, int, int] = (0, 0, 0)
    stored: int = 0

    @staticmethod
    def of(
        q: tuple[int, ...],
        k: tuple[int, ...],
        mask: tuple[int, ...] | None,
        attrs: Mapping[str, Any],
    ) -> Shape:
        """From operand shapes and attributes.

        Raises:
            UnsupportedError: a layout or sparse mode that npusim does not have.
        """
        layout, heads, mode = attrs["input_layout"], attrs["head_num"], attrs["sparse_mode"]
        if layout not in LAYOUTS or mode not in (0, 2, 3):
            raise UnsupportedError(
                f"attention with layout {layout}, sparse mode {mode}",
                f"layouts {', '.join(LAYOUTS)}; sparse modes 0, 2, 3",
                "transpose the operands, or pass the whole mask with sparse mode 0",
            )
        seq = layout.index("S")
        s1, s2 = q[seq], k[seq]
        batch = q[layout.index("B")]
        d = q[-1] if layout in ("BSND", "BNSD") else q[-1] // heads
        kv = k[layout.index("N")] if "N" in layout else k[-1] // d
        reach = {0: min(attrs["next_tokens"], s2), 2: 0, 3: s2 - s1}[mode]
        kind = "" if mask is None else "triangle" if mode else "full"
        found = Shape(batch, heads, kv, s1, s2, d, layout, reach, kind)
        first = attrs.get("first_heads")
        if not first:
            return found
        one, two, three = (int(i) for i in first)
        kv = int(attrs.get("kv_head_num") or heads)
        return replace(found, kv_heads=kv, first=(one, two, three), stored=q[2])

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads

    def place(self, batch: int, head: int, row: int, heads: int, rows: int) -> int:
        """Element at which a head's row begins, in an operand of so many heads and rows."""
        if self.layout == "BNSD":
            return ((batch * heads + head) * rows + row) * self.d
        line = row * self.batch + batch if self.layout == "SBH" else batch * rows + row
        return (line * heads + head) * self.d

    def pitch(self, heads: int) -> int:
        """Elements from a head's row to its next."""
        if self.layout == "BNSD":
            return self.d
        return heads * self.d * (self.batch if self.layout == "SBH" else 1)

    def columns(self, row: int) -> int:
        """Keys that the rows up to and with `row` see."""
        return max(0, min(self.s2, row + 1 + self.reach))

    def part(self, x: np.ndarray, operand: int) -> np.ndarray:
        """(batch, heads, rows, D) of Q, K or V, operands 0, 1, 2."""
        heads = self.kv_heads if operand else self.heads
        if self.stored:
            x = x[:, :, self.first[operand] : self.first[operand] + heads]
        return self.split(x, heads)

    def split(self, x: np.ndarray, heads: int) -> np.ndarray:
        """(batch, heads, rows, D) from memory order."""
        if self.layout == "BNSD":
            return x
        axes = (1, 2, 0, 3) if self.layout == "SBH" else (0, 2, 1, 3)
        lead = x.shape[:2]
        return x.reshape(*lead, heads, self.d).transpose(axes)

    def join(self, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Memory order from (batch, heads, rows, D)."""
        if self.layout == "BNSD":
            return x
        axes = (2, 0, 1, 3) if self.layout == "SBH" else (0, 2, 1, 3)
        return x.transpose(axes).reshape(shape)

    def hidden(self, mask: np.ndarray | None) -> np.ndarray:
        """Which scores are hidden, to broadcast over (batch, heads, S1, S2)."""
        row, column = np.arange(self.s1)[:, None], np.arange(self.s2)
        out = column > row + self.reach
        return out if self.mask != "full" or mask is None else out | (mask != 0)


def check_operands(x: Inputs, attrs: Attrs, mask: int) -> Shape:
    """The shape of a node, whose mask is input `mask`, after its rules are checked."""
    q, k, v = (x.type(i) for i in range(3))
    found = Shape.of(q.shape, k.shape, x.type(mask).shape if x.has(mask) else None, attrs)
    check(k.shape == v.shape, f"keys {k.shape}, values {v.shape}", "equal shapes")
    if found.stored:
        counts = (found.heads, found.kv_heads, found.kv_heads)
        fits = all(f + n <= found.stored for f, n in zip(found.first, counts, strict=True))
        check(found.layout == "BSND" and q.shape == k.shape and fits,
              f"heads from {found.first} on in {q.shape}", "parts of one BSND tensor")  # fmt: skip
    per = 0 if "N" in found.layout else q.shape[-1] % found.heads + k.shape[-1] % found.d
    check(per == 0, f"{found.heads} heads in {q.shape} on {k.shape}", "whole heads of one size")
    check(found.kv_heads > 0 and found.heads % found.kv_heads == 0,
          f"{found.heads} query heads on {found.kv_heads}", "groups of equal size")  # fmt: skip
    if found.mask == "triangle":
        check(x.type(mask).shape == (COMPRESSED, COMPRESSED), f"mask {x.type(mask).shape}",
              f"the compressed triangle ({COMPRESSED}, {COMPRESSED})")  # fmt: skip
    elif found.mask:
        check(x.type(mask).shape[-2:] == (found.s1, found.s2), f"mask {x.type(mask).shape}",
              f"(…, {found.s1}, {found.s2})")  # fmt: skip
    check(found.reach >= 0, f"{found.s1} queries on {found.s2} keys from the lower right corner",
          "a key for every query")  # fmt: skip
    return found


def _check_bias(x: Inputs, index: int, found: Shape) -> None:
    whole = (found.batch, found.heads, found.s1, found.s2)
    given = x.type(index).shape
    fits = len(given) == 4 and given[3] == found.s2
    check(
        fits and all(g in (1, n) for g, n in zip(given, whole, strict=False)),
        f"bias {given} on scores {whole}",
        "one that broadcasts over the first three axes",
    )


def _scores(
    a: Shape, x: Arrays, mask: np.ndarray | None, scale: float, bias: np.ndarray | None = None
) -> np.ndarray:
    """Scaled, biased and masked scores (batch, heads, S1, S2)."""
    q, k = a.part(x[0], 0), a.part(x[1], 1)
    k = np.repeat(k, a.group, axis=1)
    scores = np.float32(scale) * (q @ k.swapaxes(-1, -2))
    if bias is not None:
        scores += bias
    return np.where(a.hidden(mask), HIDDEN, scores)


def _round(x: np.ndarray, like: TensorType) -> np.ndarray:
    """x rounded to the stored type, as the cube takes it; in fp32 again."""
    return x.astype(like.dtype.np).astype(np.float32)


@operator("FlashAttentionScore")
class FlashAttentionScore(Operator):
    """query, key, value[, atten_mask][, pse] → softmax_max, softmax_sum, attention_out.

    The statistics are (B, N, S1, 8).
    """

    attrs = schema(**_ATTRS)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        a = check_operands(x, attrs, 3)
        if x.has(4):
            _check_bias(x, 4, a)
        stats = TensorType((a.batch, a.heads, a.s1, STATS), DType.FLOAT32)
        y = x.type(0)
        if a.stored:
            y = TensorType((a.batch, a.s1, a.heads, a.d), y.dtype)
        return [stats, stats, y]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        mask = x[3] if len(x) > 3 else None
        a = Shape.of(x[0].shape, x[1].shape, None if mask is None else mask.shape, attrs)
        scores = _scores(a, x, mask, attrs["scale_value"], x[4] if len(x) > 4 else None)
        top = scores.max(-1, keepdims=True)
        e = np.exp(scores - top)
        total = e.sum(-1, keepdims=True)
        v = np.repeat(a.part(x[2], 2), a.group, axis=1)
        y = _round(e, out[2]) @ v / total
        stats = [np.broadcast_to(s, out[0].shape) for s in (top, total)]
        return [*stats, a.join(y, out[2].shape)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        a = Shape.of(x[0].shape, x[1].shape, None, attrs)
        return _work(a, 2, 6)


@operator("FlashAttentionScoreGrad")
class FlashAttentionScoreGrad(Operator):
    """query, key, value, dy, atten_mask, softmax_max, softmax_sum, attention_in → dq, dk, dv."""

    attrs = schema(**_ATTRS)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        check_operands(x, attrs, 4)
        return [x.type(i) for i in range(3)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        mask, top, total = x[4], x[5][..., :1], x[6][..., :1]
        a = Shape.of(x[0].shape, x[1].shape, None if mask is None else mask.shape, attrs)
        scale = np.float32(attrs["scale_value"])
        p = np.exp(_scores(a, x, mask, attrs["scale_value"]) - top) / total
        q, dy, y = (a.split(x[i], a.heads) for i in (0, 3, 7))
        k, v = (np.repeat(a.split(x[i], a.kv_heads), a.group, axis=1) for i in (1, 2))
        dp = dy @ v.swapaxes(-1, -2)
        ds = _round(p * (dp - (dy * y).sum(-1, keepdims=True)), out[0])
        dq = scale * (ds @ k)
        dk = scale * _grouped(a, ds.swapaxes(-1, -2) @ q)
        dv = _grouped(a, _round(p, out[0]).swapaxes(-1, -2) @ dy)
        return [a.join(g, t.shape) for g, t in zip((dq, dk, dv), out, strict=True)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        a = Shape.of(x[0].shape, x[1].shape, None, attrs)
        return _work(a, 5, 10)


def _grouped(a: Shape, x: np.ndarray) -> np.ndarray:
    """Sums over the query heads of every key head."""
    return x.reshape(a.batch, a.kv_heads, a.group, a.s2, a.d).sum(2)


def _work(a: Shape, products: int, passes: int) -> Work:
    """Products of D MACs and vector operations per visible score."""
    full = min(a.s1, max(0, a.s2 - 1 - a.reach))  # rows that do not see every key
    visible = a.batch * a.heads * (a.s1 * a.s2 - full * (2 * (a.s2 - 1 - a.reach) - full + 1) // 2)
    return Work(macs=products * a.d * visible, vector_ops=passes * visible)


MASKED = -10000.0  #: score that ScaledMaskedSoftmax gives to what its mask hides


@operator("ScaledMaskedSoftmax")
class ScaledMaskedSoftmax(Operator):
    """x (N, C, H, W), mask that broadcasts to it → softmax over W of scale·x, masked.

    In fp16 the scaled scores, and their distances from the maximum, are rounded to fp16.
    """

    attrs = schema(scale=1.0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, mask = x.type(0), x.type(1)
        fits = len(mask.shape) == len(t.shape) and all(
            m in (1, n) for m, n in zip(mask.shape[:-2], t.shape[:-2], strict=True)
        )
        check(fits and mask.shape[-2:] == t.shape[-2:], f"mask {mask.shape} on {t.shape}",
              "equal planes, broadcast over the axes before")  # fmt: skip
        return [t]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        narrow = out[0] if out[0].dtype is DType.FLOAT16 else TensorType((), DType.FLOAT32)
        scores = _round(x[0] * np.float32(attrs["scale"]), narrow)
        scores = np.where(x[1] != 0, np.float32(MASKED), scores)
        e = np.exp(_round(scores - scores.max(-1, keepdims=True), narrow))
        return [e / e.sum(-1, keepdims=True)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=8 * out[0].size)


@operator("ScaledMaskedSoftmaxGrad")
class ScaledMaskedSoftmaxGrad(Operator):
    """dy, y (N, C, H, W), mask → scale·(dy - Σ dy·y)·y where the mask is 0, else 0."""

    attrs = schema(scale=1.0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        check(x.type(0).shape == x.type(1).shape, f"dy {x.type(0).shape}", f"{x.type(1).shape}")
        return [x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        dy, y, mask = x
        dx = (dy - (dy * y).sum(-1, keepdims=True)) * y
        return [np.where(mask != 0, np.float32(0), dx * np.float32(attrs["scale"]))]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=6 * out[0].size)
