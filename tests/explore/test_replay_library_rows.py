"""From recorded operators of transformer training to launches."""

from __future__ import annotations

import pytest

from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.explore.replay import launch_of, replay
from npusim.frontends.recorded import RecordedOp, RecordedTensor

CHIP = load_chip("ascend910b4")


def tensors(text: str) -> tuple[RecordedTensor, ...]:
    """`dtype:1,2,3` separated by blanks."""
    found = []
    for part in text.split():
        dtype, shape = part.split(":")
        found.append(RecordedTensor("ND", dtype, tuple(int(n) for n in shape.split(",") if n)))
    return tuple(found)


def row(op_type: str, inputs: str, outputs: str, blocks: int = 40) -> RecordedOp:
    """A recorded operator."""
    ins, outs = tensors(inputs), tensors(outputs)
    return RecordedOp("net", op_type, op_type, "AI_CORE", blocks, ins, outs, 1, 10.0)


B = "bfloat16"
HEADS, TABLE = f"{B}:256,1,8,128", f"{B}:256,1,1,128"
CASES = [
    ("RmsNorm", f"{B}:512,1,1024 {B}:1024", f"{B}:512,1,1024 {B}:512,1,1", "RmsNorm"),
    ("RmsNorm", f"{B}:64,16384 {B}:16384", f"{B}:64,16384 {B}:64,1", "Norm"),
    ("AddRmsNorm", f"{B}:512,1024 {B}:512,1024 {B}:1024",
     f"{B}:512,1024 float32:512,1 {B}:512,1024", "RmsNorm"),
    ("RmsNormGrad", f"{B}:512,1,128 {B}:512,1,128 float32:512,1,1 {B}:128",
     f"{B}:512,1,128 {B}:128", "RmsNormGrad"),
    ("LayerNormV4", f"{B}:512,1024 int64:1 {B}:1024 {B}:1024",
     f"{B}:512,1024 float32:512,1 float32:512,1", "Norm"),
    ("LayerNormGradV3", f"{B}:512,1024 {B}:512,1024 float32:512,1 float32:512,1 {B}:1024",
     f"{B}:512,1024 float32:1024 float32:1024", "LayerNormGrad"),
    ("SoftmaxGrad", f"{B}:64,16,256 {B}:64,16,256", f"{B}:64,16,256", "RowTiles"),
    ("SwiGlu", f"{B}:512,6144", f"{B}:512,3072", "Gated"),
    ("SwiGluGrad", f"{B}:512,3072 {B}:512,6144", f"{B}:512,6144", "Gated"),
    ("RotaryPositionEmbedding", f"{HEADS} {TABLE} {TABLE}", HEADS, "Rotary"),
    ("RotaryPositionEmbeddingGrad", f"{HEADS} {TABLE} {TABLE}", HEADS, "Rotary"),
    ("LpNormV2", "float32:100000", "float32:", "SumAll"),
    ("ForeachAddList", "float32:64,3 float32:7 float32:64,3 float32:7 float32:",
     "float32:192 float32:7", "Elementwise"),
    ("ForeachMulScalar", "float32:64,3 float32:7 float32:", "float32:192 float32:7", "Elementwise"),
    ("FastGelu", "float16:4,1024", "float16:4,1024", "Elementwise"),
    ("Sin", "float32:4,1024", "float32:4,1024", "Elementwise"),
    ("Less", "float32:4,1024 float32:", "uint8:4,1024", "Elementwise"),
    ("ArgMaxWithValue", "float32:4,1024,640", "float32:4,1024 float32:4,1024", "ArgValue"),
    ("Muls", "float32:4,1024", "float32:4,1024", "Elementwise"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "ins", "outs", "kernel"), CASES)
def test_launches(op: str, ins: str, outs: str, kernel: str) -> None:
    """Each row becomes its kernel, is planned and timed, and takes longer than its launch."""
    recorded = row(op, ins, outs)
    assert launch_of(recorded).kernel == kernel
    (replayed,) = replay([recorded], CHIP).rows
    assert replayed.predicted_us is not None, replayed.reason
    assert replayed.predicted_us > CHIP.scheduler.launch * 1e6


@pytest.mark.parametrize(
    ("op", "why"),
    [("DSAGenBitMask", "DSA unit"), ("StatelessRandomNormal", "Philox"), ("Sort", "vbitsort")],
)
def test_what_is_not_modelled_says_why(op: str, why: str) -> None:
    (replayed,) = replay([row(op, "float32:4096", "float32:4096")], CHIP).rows
    assert replayed.predicted_us is None and why in replayed.reason


def test_operands_that_do_not_fit_are_refused() -> None:
    for bad in (
        row("SwiGlu", f"{B}:512,6144", f"{B}:512,6144"),
        row("ForeachAddList", "float32:64 float32:7 float32:64 float32:8", "float32:64 float32:7"),
        row("ForeachMulScalar", "float32:64 float16:7 float32:", "float32:64 float16:7"),
        row("RotaryPositionEmbeddingGrad", f"{HEADS} {TABLE} {TABLE} {HEADS}", HEADS),
        row("LpNormV2", "float32:64,8", "float32:64"),
    ):
        with pytest.raises(UnsupportedError):
            launch_of(bad)
