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
        compressed = mask.shape == (COMPRESSED, COMPRESSED)
        attrs |= {"sparse_mode": 2} if compressed else {"next_tokens": 0}
    return attrs


def _given(op: RecordedOp, index: int) -> RecordedTensor | None:
    """An optional input, None where it was not given."""
    found = op.inputs[index] if len(op.inputs) > index else None
    return found if found is not None and found.shape else None


def _refuse(op: RecordedOp, names: dict[int, str]) -> None:
    """Raise ValueError when an input is given that the kernels do not take."""
    for index, name in names.items():
        if _given(op, index) is not None:
            raise ValueError(f"with a {name}")


@replays("FlashAttentionScore")
def flash_attention(op: RecordedOp) -> Launch:
    """query, key, value, …, atten_mask, … → softmax_max, softmax_sum, softmax_out, attention_out.

    The queries are taken in the shape of attention_out, heads from softmax_sum.
    """
    _refuse(op, {3: "positional bias", 4: "dropout mask"})
    k, v, y = operand(op.inputs[1]), operand(op.inputs[2]), operand(op.outputs[3])
    mask = _given(op, 6)
    attrs = _attributes(y, op.outputs[1], mask)
    stats = OperandSpec(op.outputs[1].shape, DType.FLOAT32)
    inputs: tuple[OperandSpec | None, ...] = (y, k, v)
    if mask is not None:
        inputs = (*inputs, operand(mask))
    args = KernelArgs(
        "FlashAttentionScore", inputs, (stats, stats, y), tuple(sorted(attrs.items()))
    )
    return Launch("FlashAttentionScore", args)


@replays("FlashAttentionScoreGrad")
def flash_attention_grad(op: RecordedOp) -> Launch:
    """query, key, value, dy, [atten_mask], softmax_max, softmax_sum, …, attention_in → dq, dk, dv.

    Which optional inputs were given is told by their types and shapes.
    """
    q, k, v, dy = (operand(t) for t in op.inputs[:4])
    rest = [t for t in op.inputs[4:] if t.shape]
    stats = [t for t in rest if len(t.shape) == 4 and t.shape[-1] == STATS]
    masks = [t for t in rest if t.dtype in ("bool", "uint8")]
    if len(stats) != 2 or len(masks) > 1 or rest[-1].shape != q.shape:
        raise ValueError("inputs other than a mask, two statistics and attention_in")
    mask = masks[0] if masks else None
    attrs = _attributes(q, stats[0], mask)
    kept = OperandSpec(stats[0].shape, DType.FLOAT32)
    inputs = (q, k, v, dy, None if mask is None else operand(mask), kept, kept, operand(rest[-1]))
    args = KernelArgs("FlashAttentionScoreGrad", inputs, (q, k, v), tuple(sorted(attrs.items())))
    return Launch("FlashAttentionScoreGrad", args)


@replays("ScaledMaskedSoftmax")
def masked_softmax(op: RecordedOp) -> Launch:
    """x, mask → y."""
    x, mask, y = (operand(t) for t in (*op.inputs[:2], op.outputs[0]))
    return Launch("ScaledMaskedSoftmax", KernelArgs("ScaledMaskedSoftmax", (x, mask), (y,)))
