"""Fused attention of a profile, forward and backward.

Profilers write optional operands that were not given as scalars, and keep no attributes: heads are
read off the statistics (B, N, S, 8), the layout off the operands' axes. A mask is taken as causal,
as language models train: the compressed triangle (sparse mode 2) where it is 2048 × 2048, else a
whole mask behind which nothing is looked at (next_tokens 0).
"""

from __future__ import annotations

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType
from npusim.ops.training_attention import COMPRESSED, STATS
from npusim.program.kernel import KernelArgs, OperandSpec

_BYTES = ("bool", "uint8")


def _attributes(
    q: OperandSpec, stats: RecordedTensor, mask: RecordedTensor | None
) -> dict[str, object]:
    """Heads, layout, scale and mask mode.

    Raises:
        ValueError: the operands' axes are of no known layout.
    """
    batch, heads, rows, eight = stats.shape
    if eight != STATS:
        raise ValueError(f"statistics of shape {stats.shape}")
    s = q.shape
    layouts = {
        "SBH": (rows, batch), "BSH": (batch, rows),
        "BSND": (batch, rows, heads), "BNSD": (batch, heads, rows),
    }  # fmt: skip
    fits = [n for n, lead in layouts.items() if len(s) == len(lead) + 1 and s[:-1] == lead]
    if not fits:
        raise ValueError(f"queries of shape {s} with statistics of {stats.shape}")
    d = s[-1] if len(s) == 4 else s[-1] // heads
    attrs: dict[str, object] = {
        "head_num": heads, "input_layout": fits[0], "scale_value": d**-0.5,
    }  # fmt: skip
    if mask is not None:
        attrs |= {"sparse_mode": 2} if _compressed(mask) else {"next_tokens": 0}
    return attrs


def _compressed(mask: RecordedTensor) -> bool:
    """True for the triangle that stands for any causal mask."""
    return mask.shape[-2:] == (COMPRESSED, COMPRESSED) and mask.size == COMPRESSED**2


def _mask_operand(mask: RecordedTensor) -> OperandSpec:
    spec = operand(mask)
    return OperandSpec(spec.shape[-2:], spec.dtype) if _compressed(mask) else spec


def _mask(given: list[RecordedTensor]) -> RecordedTensor | None:
    """The mask among the optional inputs that were given: bytes of two axes or more.

    Raises:
        ValueError: there are several.
    """
    masks = [t for t in given if t.dtype in _BYTES and len(t.shape) > 1]
    if len(masks) > 1:
        raise ValueError(f"{len(masks)} masks")
    return masks[0] if masks else None


@replays("FlashAttentionScore")
def flash_attention(op: RecordedOp) -> Launch:
    """query, key, value, …, [atten_mask], … → softmax_max, softmax_sum, …, attention_out.

    The queries are taken in the shape of attention_out, heads from softmax_sum. Which optional
    inputs were given is told by their types and shapes.
    """
    k, v, y = operand(op.inputs[1]), operand(op.inputs[2]), operand(op.outputs[-1])
    given = [t for t in op.inputs[3:] if t.shape]
    if any(t.dtype == op.inputs[0].dtype for t in given):
        raise ValueError("with a positional bias")
    if any(t.dtype in _BYTES and len(t.shape) == 1 for t in given):
        raise ValueError("with a dropout mask")
    mask = _mask(given)
    attrs = _attributes(y, op.outputs[1], mask)
    stats = OperandSpec(op.outputs[1].shape, DType.FLOAT32)
    inputs: tuple[OperandSpec | None, ...] = (y, k, v)
    if mask is not None:
        inputs = (*inputs, _mask_operand(mask))
    ordered = tuple(sorted(attrs.items()))
    args = KernelArgs("FlashAttentionScore", inputs, (stats, stats, y), ordered)
    return Launch("FlashAttentionScore", args)


@replays("FlashAttentionScoreGrad")
def flash_attention_grad(op: RecordedOp) -> Launch:
    """query, key, value, dy, [atten_mask], softmax_max, softmax_sum, …, attention_in → dq, dk, dv.

    Which optional inputs were given is told by their types and shapes.
    """
    q, k, v, dy = (operand(t) for t in op.inputs[:4])
    rest = [t for t in op.inputs[4:] if t.shape]
    stats = [t for t in rest if len(t.shape) == 4 and t.shape[-1] == STATS]
    kept_y = [t for t in rest if t.shape == q.shape and t.dtype == op.inputs[0].dtype]
    others = [t for t in rest if t not in (*stats, *kept_y) and t.dtype in (*_BYTES, q.dtype.value)]
    mask = _mask(rest)
    if len(stats) != 2 or len(kept_y) != 1 or any(t is not mask for t in others):
        raise ValueError("inputs other than a mask, two statistics and attention_in")
    attrs = _attributes(q, stats[0], mask)
    kept = OperandSpec(stats[0].shape, DType.FLOAT32)
    inputs = (
        q,
        k,
        v,
        dy,
        None if mask is None else _mask_operand(mask),
        kept,
        kept,
        operand(kept_y[0]),
    )
    args = KernelArgs("FlashAttentionScoreGrad", inputs, (q, k, v), tuple(sorted(attrs.items())))
    return Launch("FlashAttentionScoreGrad", args)


@replays("ScaledMaskedSoftmax")
def masked_softmax(op: RecordedOp) -> Launch:
    """x, mask → y."""
    x, mask, y = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    return Launch("ScaledMaskedSoftmax", KernelArgs("ScaledMaskedSoftmax", (x, mask), (y,)))


@replays("ScaledMaskedSoftmaxGrad")
def masked_softmax_grad(op: RecordedOp) -> Launch:
    """dy, y, mask → dx."""
    dy, y, mask, dx = (operand(t) for t in (*op.inputs[:3], op.outputs[0]))
    args = KernelArgs("ScaledMaskedSoftmaxGrad", (dy, y, mask), (dx,))
    return Launch("ScaledMaskedSoftmaxGrad", args)
