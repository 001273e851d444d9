"""Recorded rows of normalisation, softmax, pooling and indexed kernels, replayed.

Times are of a 30-core Ascend 910 (Huawei-Performance-Model/Ascend-910B); each row stands for a
structure that makes its time, so a bound on its error holds the structure.
"""

from __future__ import annotations

import pytest

from npusim.chip import load_chip
from npusim.explore.replay import launch_of, replay
from npusim.frontends.recorded import RecordedOp, RecordedTensor

P = ("NC1HWC0", "float32", (1, 16, 1, 1, 16))
X = ("NC1HWC0", "float16", (32, 16, 56, 56, 16))
NZ = ("FRACTAL_NZ", "float16", (48, 256, 16, 16))
NZ32 = ("FRACTAL_NZ", "float32", (48, 256, 16, 16))
ROWS = {
    "Softmax, one unaligned row at a time": (
        "Softmax",
        [("ND", "float16", (64, 12, 50, 50))],
        [("ND", "float16", (64, 12, 50, 50))],
        30,
        681.3,
        0.10,
    ),
    "UpdateGrad, seven passes": ("BNTrainingUpdateGrad", [X, X, P, P], [P, P], 30, 260.5, 0.10),
    "Update, four passes": ("BNTrainingUpdate", [X] + [P] * 6, [X] + [P] * 4, 30, 143.2, 0.10),
    "segment sum, one atomic add after the other": (
        "UnsortedSegmentSum",
        [("ND", "float32", (16000, 39, 80)), ("ND", "int32", (16000, 39))],
        [("ND", "float32", (184965, 80))],
        30,
        2125.8,
        0.10,
    ),
    "segment sum, one short row at a time": (
        "UnsortedSegmentSum",
        [("ND", "float32", (16000, 39, 8)), ("ND", "int32", (16000, 39))],
        [("ND", "float32", (184965, 8))],
        30,
        6065.8,
        0.15,
    ),
    "column sums, 48 blocks on 30 cores": (
        "LayerNormBetaGammaBackpropV2",
        [NZ, NZ32],
        [("ND", "float32", (768,)), ("ND", "float32", (768,))],
        48,
        25.3,
        0.25,
    ),
}


def _op(kind: str, ins: list, outs: list, blocks: int, us: float) -> RecordedOp:
    sides = (tuple(RecordedTensor(*t) for t in side) for side in (ins, outs))
    return RecordedOp("net", kind, kind, "AI_CORE", blocks, *sides, 1, us)


@pytest.mark.parametrize("name", list(ROWS))
def test_the_structure_gives_the_time(name: str) -> None:
    kind, ins, outs, blocks, us, bound = ROWS[name]
    op = _op(kind, ins, outs, blocks, us)
    row = replay([op], load_chip("ascend910-30c")).rows[0]
    assert row.predicted_us is not None, row.reason
    assert row.block_dim == blocks
    assert abs(row.predicted_us / us - 1) < bound


def test_windows_that_profiles_do_not_keep() -> None:
    x, y = (("NC1HWC0", "float16", (2, 1, n, n, 16)) for n in (112, 56))
    mask = ("NC1HWC0", "uint8", (2, 1, 9, 197, 16))
    launch = launch_of(_op("MaxPoolWithArgmax", [x], [y, mask], 2, 1.0))
    attrs = dict(launch.args.attrs)
    assert attrs["strides"] == (2, 2) and attrs["pads"] == (0, 0, 1, 1)
    average = launch_of(_op("AvgPool", [x], [x], 2, 1.0))
    assert dict(average.args.attrs)["kernel_shape"] == (3, 3)
    assert dict(average.args.attrs)["pads"] == (1, 1, 1, 1)


def test_rms_norm_on_a_910b4() -> None:
    x, scale = ("ND", "float16", (4096, 1, 1024)), ("ND", "float16", (1024,))
    rstd = ("ND", "float32", (4096, 1, 1))
    op = _op("RmsNorm", [x, scale], [x, rstd], 40, 32.19)
    row = replay([op], load_chip("ascend910b4")).rows[0]
    assert row.predicted_us is not None and row.block_dim == 40
    assert abs(row.predicted_us / 32.19 - 1) < 0.35
