"""Recorded attention rows: from the profile's operands to launches, and their times.

Times are of msprof (Ascend/msinsight, Ascend/msprof-analyze) and of the kernel authors' table in
hw-native-sys/pto-isa (torch_npu's fused operator); a bound on the error holds the structure.
"""

from __future__ import annotations

import pytest

from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.explore.replay import Launch, launch_of, replay
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType
from npusim.program.kernel import KernelArgs, OperandSpec


def nd(dtype: str, *shape: int) -> RecordedTensor:
    """A plain tensor."""
    return RecordedTensor("ND", dtype, shape)


ABSENT = nd("bfloat16")


def row(kind: str, inputs: list[RecordedTensor], outputs: list[RecordedTensor], us: float,
        blocks: int = 20) -> RecordedOp:  # fmt: skip
    """A recorded row."""
    return RecordedOp("n", kind, kind, "MIX_AIC", blocks, tuple(inputs), tuple(outputs), 1, us)


def forward(mask: tuple[int, int] | None, us: float = 877.28) -> RecordedOp:
    """16 query heads on 8 of 128, 4096 rows, as torch_npu records them."""
    q, kv = nd("bfloat16", 4096, 1, 2048), nd("bfloat16", 4096, 1, 1024)
    hidden = ABSENT if mask is None else nd("bool", *mask)
    stats = nd("float32", 1, 16, 4096, 8)
    inputs = [q, kv, kv, ABSENT, nd("uint8"), ABSENT, hidden, nd("int64"), nd("int64")]
    return row("FlashAttentionScore", inputs, [stats, stats, ABSENT, q], us)


def backward() -> RecordedOp:
    """Its gradient."""
    q, kv = nd("bfloat16", 4096, 1, 2048), nd("bfloat16", 4096, 1, 1024)
    stats, mask = nd("float32", 1, 16, 4096, 8), nd("bool", 2048, 2048)
    inputs = [q, kv, kv, q, mask, stats, stats, ABSENT, q, nd("int64")]
    return row("FlashAttentionScoreGrad", inputs, [q, kv, kv], 2249.92)


def test_heads_and_layout_are_read_off_the_shapes() -> None:
    args = launch_of(forward((2048, 2048))).args
    found = [args.attr(n) for n in ("head_num", "input_layout", "sparse_mode", "scale_value")]
    assert found == [16, "SBH", 2, 128**-0.5]
    assert [o.shape for o in args.outputs[:2]] == [(1, 16, 4096, 8)] * 2
    assert args.outputs[0].dtype is DType.FLOAT32
    assert launch_of(forward((4096, 4096))).args.get("next_tokens") == 0
    assert len(launch_of(forward(None)).args.inputs) == 3
    grad = launch_of(backward()).args
    assert [i is not None for i in grad.inputs] == [True] * 8
    assert grad.attr("sparse_mode") == 2


def test_what_the_kernels_do_not_take_is_said() -> None:
    op = forward(None)
    biased = (*op.inputs[:3], nd("bfloat16", 1, 16, 4096, 4096), *op.inputs[4:])
    with pytest.raises(UnsupportedError, match="positional bias"):
        launch_of(row("FlashAttentionScore", list(biased), list(op.outputs), 1.0))


@pytest.mark.parametrize("op", [forward((2048, 2048)), backward()])
def test_recorded_times(op: RecordedOp) -> None:
    (found,) = replay([op], load_chip("ascend910b4")).rows
    assert found.predicted_us == pytest.approx(op.measured_us, rel=0.10)
    assert found.bound == "L2" and found.block_dim == 20


@pytest.mark.parametrize(("s", "us", "within"), [(8192, 353.1, 0.12), (32768, 3646.2, 0.08)])
def test_one_head_on_the_910b2(s: int, us: float, within: float) -> None:
    """torch_npu's fused operator, one head of 128 in fp16, no mask."""
    x, stats = OperandSpec((1, 1, s, 128), DType.FLOAT16), OperandSpec((1, 1, s, 8), DType.FLOAT32)
    attrs = (("head_num", 1), ("input_layout", "BNSD"), ("scale_value", 128**-0.5))
    args = KernelArgs("FlashAttentionScore", (x, x, x), (stats, stats, x), attrs)
    from npusim.explore.replay import plan_for, time_waves
    from npusim.machine.gm import cold

    chip, launch = load_chip("ascend910b2"), Launch("FlashAttentionScore", args)
    plan = plan_for(launch, chip, 0)
    found = chip.seconds(time_waves(chip, launch, plan, cold(plan)).cycles) * 1e6
    assert found == pytest.approx(us, rel=within)


def test_masked_softmax_after_its_product() -> None:
    x, mask = nd("float16", 4, 3, 1024, 1024), nd("bool", 1, 1, 1024, 1024)
    op = row("ScaledMaskedSoftmax", [x, mask], [x], 91.48, 48)
    (found,) = replay([op], load_chip("ascend910b1")).rows
    assert found.predicted_us == pytest.approx(op.measured_us, rel=0.16)
