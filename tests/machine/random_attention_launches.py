"""Random launches of the attention kernels, as `random_launches` has them."""

from __future__ import annotations

from random import Random

from npusim.ir import DType
from npusim.program.kernel import KernelArgs, OperandSpec

F16, F32, BOOL = DType.FLOAT16, DType.FLOAT32, DType.BOOL


def _attention(
    rng: Random, size: int
) -> tuple[OperandSpec, OperandSpec, OperandSpec | None, OperandSpec, dict[str, object]]:
    """Queries, keys, mask, statistics and attributes."""
    batch, kv = rng.randint(1, 2), rng.randint(1, 2)
    heads, d = kv * rng.randint(1, 2), 16 * rng.randint(1, 8)
    s1, s2 = rng.randint(1, 8 * size), rng.randint(1, 30 * size)
    layout = rng.choice(["SBH", "BSH", "BSND", "BNSD"])

    def operand(rows: int, n: int) -> OperandSpec:
        shapes = {
            "SBH": (rows, batch, n * d), "BSH": (batch, rows, n * d),
            "BSND": (batch, rows, n, d), "BNSD": (batch, n, rows, d),
        }  # fmt: skip
        return OperandSpec(shapes[layout], F16)

    attrs: dict[str, object] = {"head_num": heads, "input_layout": layout, "scale_value": 0.1}
    mask = None
    kind = rng.choice(["none", "full", "triangle"])
    if kind == "triangle":
        mask = OperandSpec((2048, 2048), BOOL)
        attrs["sparse_mode"] = 2
    elif kind == "full":
        mask = OperandSpec(rng.choice([(s1, s2), (batch, 1, s1, s2)]), BOOL)
    stats = OperandSpec((batch, heads, s1, 8), F32)
    return operand(s1, heads), operand(s2, kv), mask, stats, attrs


def flash_attention(rng: Random, size: int) -> KernelArgs:
    """FlashAttentionScore with any mask, or a bias."""
    q, k, mask, stats, attrs = _attention(rng, size)
    inputs: tuple[OperandSpec | None, ...] = (q, k, k) if mask is None else (q, k, k, mask)
    if mask is None and rng.random() < 0.5:
        batch, heads, rows, _ = stats.shape
        columns = k.shape[str(attrs["input_layout"]).index("S")]
        lead = (rng.choice([1, batch]), rng.choice([1, heads]), rng.choice([1, rows]))
        inputs = (*inputs, None, OperandSpec((*lead, columns), F16))
    return KernelArgs(
        "FlashAttentionScore", inputs, (stats, stats, q), tuple(sorted(attrs.items()))
    )


def flash_attention_grad(rng: Random, size: int) -> KernelArgs:
    """FlashAttentionScoreGrad with any mask."""
    q, k, mask, stats, attrs = _attention(rng, size)
    inputs = (q, k, k, q, mask, stats, stats, q)
    return KernelArgs("FlashAttentionScoreGrad", inputs, (q, k, k), tuple(sorted(attrs.items())))


def masked_softmax(rng: Random, size: int) -> KernelArgs:
    """ScaledMaskedSoftmax, whose mask may broadcast."""
    lead = (rng.randint(1, 3), rng.randint(1, 3))
    plane = (32 * rng.randint(1, 4), 32 * rng.randint(1, 40))
    x = OperandSpec((*lead, *plane), rng.choice([F16, F32]))
    mask = OperandSpec((*(rng.choice([1, n]) for n in lead), *plane), BOOL)
    return KernelArgs("ScaledMaskedSoftmax", (x, mask), (x,), (("scale", 0.5),))


def masked_softmax_grad(rng: Random, size: int) -> KernelArgs:
    """ScaledMaskedSoftmaxGrad of the same."""
    args = masked_softmax(rng, size)
    x, mask = OperandSpec(args.outputs[0].shape, F16), args.inputs[1]
    return KernelArgs("ScaledMaskedSoftmaxGrad", (x, x, mask), (x,), (("scale", 0.5),))


MAKERS = {
    "FlashAttentionScore": flash_attention,
    "FlashAttentionScoreGrad": flash_attention_grad,
    "ScaledMaskedSoftmax": masked_softmax,
    "ScaledMaskedSoftmaxGrad": masked_softmax_grad,
}
