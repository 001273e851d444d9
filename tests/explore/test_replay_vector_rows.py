"""From recorded vector and data-movement operators to launches, and L2 between them."""

from __future__ import annotations

import pytest

from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.explore.replay import launch_of, replay
from npusim.frontends.recorded import RecordedOp, RecordedTensor

CHIP = load_chip("ascend910-30c")


def tensor(text: str) -> RecordedTensor:
    """`FORMAT:dtype:1,2,3`."""
    layout, dtype, shape = text.split(":")
    return RecordedTensor(layout, dtype, tuple(int(n) for n in shape.split(",") if n))


def row(op_type: str, inputs: str, outputs: str, blocks: int = 30) -> RecordedOp:
    """A recorded operator; operands separated by blanks."""
    ins, outs = (tuple(tensor(t) for t in side.split()) for side in (inputs, outputs))
    return RecordedOp("net", op_type, op_type, "AI_CORE", blocks, ins, outs, 1, 10.0)


NZ = "FRACTAL_NZ:float32:4,8,16,16"
ND = "ND:float32:128,64"
HALF = "ND:float16:64,50,768"
CASES = [
    ("Mul", f"ND:float32:1 {NZ}", NZ, "Elementwise", "Mul"),
    ("Cast", HALF, HALF.replace("float16", "float32"), "Elementwise", "Cast"),
    ("FusionOp_RealDiv_Sqrt", f"{NZ} ND:float32:1", NZ, "Elementwise", "Div"),
    ("FusedMulAddN", f"{NZ} {NZ} ND:float32:", NZ, "Elementwise", "Mul"),
    ("GeLUGrad", f"{HALF} {HALF} {HALF}", HALF, "Elementwise", "GeluGrad"),
    ("ApplyRMSProp", f"{ND} {ND} {ND} ND:float32:1 {ND}", f"{ND} {ND} {ND}", "Elementwise",
     "ApplyRMSProp"),
    ("Assign", f"{ND} {ND}", ND, "Move", "Identity"),
    ("AtomicAddrClean", ND, "", "AtomicClean", "MemSet"),
    ("ZerosLike", ND, ND, "Move", "MemSet"),
    ("ZerosLike", ND.replace("float32", "int8"), ND.replace("float32", "int8"), "FillBytes",
     "MemSet"),
    ("TensorMove", ND, ND, "Move", "Identity"),
    ("TransData", "FRACTAL_NZ:float16:7,2,16,16", "ND:float16:32,100", "TransData", "TransData"),
    ("TransData", "ND:float16:8,3,24,24", "NC1HWC0:float16:8,1,24,24,16", "TransData",
     "TransData"),
    ("TransData", "ND:float32:64,32,3,3", "ND:float32:36,4,16,8", "Transpose", "Transpose"),
    ("OneHot", "ND:int32:32 ND:float32: ND:float32:", "ND:float32:32,100", "OneHot", "OneHot"),
    ("AsStrided", "ND:float16:128,4,48", "ND:float16:12,128,8", "Move", "Slice"),
    ("PadV3", "ND:float32:8,20,30 ND:int32:3,2", "ND:float32:8,21,37", "PadV3", "Pad"),
    ("TransData", ND, "FRACTAL_NZ:float32:4,8,16,16", "TransData", "TransData"),
    ("Transpose", "ND:float16:8,12,50,64", "ND:float16:8,50,12,64", "Transpose", "Transpose"),
    ("ConfusionTransposeD", "FRACTAL_NZ:float16:48,16,16,16", "FRACTAL_NZ:float16:2,12,4,8,16,16",
     "Transpose", "Transpose"),
    ("Concat", "NC1HWC0:float16:2,4,7,7,16 NC1HWC0:float16:2,2,7,7,16",
     "NC1HWC0:float16:2,6,7,7,16", "Move", "Concat"),
    ("Slice", "NC1HWC0:float16:2,6,7,7,16", "NC1HWC0:float16:2,4,7,7,16", "Move", "Slice"),
    ("StridedSliceGrad", "ND:float16:64,768", HALF, "Move", "Pad"),
    ("Tile", "ND:float32:160,1", "ND:float32:160,80", "Move", "Tile"),
    ("BiasAddGrad", "FRACTAL_NZ:float16:48,16,16,16", "ND:float16:768", "BiasGrad", "ReduceSum"),
    ("ReduceSum", "ND:float32:160,39,80", "ND:float32:160,80", "LibraryReduce", "ReduceSum"),
    ("SquareSumV2", ND, f"ND:float32:1,1 {ND}", "SumAll", "SquareSumV2"),
    ("ReluGradV2", "NC1HWC0:float16:2,4,7,7,16 ND:uint8:2,4,7,7,2", "NC1HWC0:float16:2,4,7,7,16",
     "BitMask", "ReluGradV2"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "ins", "outs", "kernel", "kind"), CASES)
def test_launches(op: str, ins: str, outs: str, kernel: str, kind: str) -> None:
    """Each row becomes its kernel, is planned and timed, and takes longer than its launch."""
    recorded = row(op, ins, outs)
    launch = launch_of(recorded)
    assert (launch.kernel, launch.args.op_type) == (kernel, kind)
    (replayed,) = replay([recorded], CHIP).rows
    assert replayed.predicted_us is not None, replayed.reason
    assert replayed.predicted_us > CHIP.scheduler.launch * 1e6


def test_operands_that_do_not_fit_are_refused() -> None:
    for bad in (
        row("Transpose", "ND:float16:2,3,4", "ND:float16:2,3,5"),
        row("Concat", "ND:float16:2,3 ND:float16:2,3", "ND:float16:2,7"),
        row("Mul", "ND:float32:3 ND:float32:4", "ND:float32:4"),
        row("TransData", "ND:float16:2,3", "ND:float16:2,3"),
    ):
        with pytest.raises(UnsupportedError):
            launch_of(bad)


def test_what_was_just_written_is_read_from_l2() -> None:
    """The reader of a tensor is quicker after its producer than alone."""
    cast = row("Cast", HALF, HALF.replace("float16", "float32"))
    neg = row("Neg", HALF.replace("float16", "float32"), HALF.replace("float16", "float32"))
    after = replay([cast, neg], CHIP).rows[1].predicted_us
    alone = replay([neg], CHIP).rows[0].predicted_us
    assert after is not None and alone is not None
    assert after < 0.8 * alone
