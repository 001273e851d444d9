"""Recorded rows of normalisation, softmax, pooling and indexed kernels, replayed.

Times are of a 30-core Ascend 910 (Huawei-Performance-Model/Ascend-910B); each row stands for a
structure that makes its time, so a bound on its error holds the structure.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.explore.replay import launch_of, replay
from npusim.frontends.recorded import RecordedOp, RecordedTensor


def _nc(c1: int, side: int) -> tuple[str, str, tuple[int, ...]]:
    """A batch of 32 square images."""
    return ("NC1HWC0", "float16", (32, c1, side, side, 16))


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
    "cross entropy, the maximum of a row found by the scalar unit": (
        "SoftmaxCrossEntropyWithLogits",
        [("ND", "float32", (32, 100))] * 2,
        [("ND", "float32", (32,)), ("ND", "float32", (32, 100))],
        1,
        186.2,
        0.10,
    ),
    "layer norm's gradient, strips of two rows": (
        "LayerNormXBackpropV2",
        [("ND", "float16", (64, 50, 768))] * 2
        + [("ND", "float16", (64, 50, 1))] * 2
        + [("ND", "float16", (768,))],
        [("ND", "float16", (64, 50, 768)), ("ND", "float32", (64, 50, 768))],
        25,
        127.5,
        0.10,
    ),
    "layer norm's gradient in NZ, the mean spread block by block": (
        "LayerNormXBackpropV2",
        [NZ, NZ, *[("ND", "float16", (4096, 1))] * 2, ("ND", "float16", (768,))],
        [NZ, NZ32],
        30,
        213.2,
        0.12,
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
    "gradient of a max pool, bands that share a row of outputs": (
        "MaxPoolGradWithArgmax",
        [_nc(18, 35), _nc(18, 17), ("NC1HWC0", "uint8", (32, 18, 9, 20, 16))],
        [_nc(18, 35)],
        30,
        680.6,
        0.10,
    ),
    "gradient of ResNet's max pool, one block a slice": (
        "MaxPoolGradWithArgmax",
        [_nc(4, 112), _nc(4, 56), ("NC1HWC0", "uint8", (32, 4, 9, 197, 16))],
        [_nc(4, 112)],
        128,
        356.4,
        0.20,  # 128 blocks on 30 cores, one by one
    ),
    "max pool, img2col and vector unit by turns": (
        "MaxPoolWithArgmax",
        [_nc(4, 147)],
        [_nc(4, 73), ("NC1HWC0", "uint8", (32, 4, 9, 335, 16))],
        26,
        535.0,
        0.10,
    ),
    "average pool, one tap after the other": (
        "AvgPool",
        [_nc(48, 17)],
        [_nc(48, 17)],
        16,
        163.8,
        0.1,
    ),
    "average pool of whole images": ("AvgPool", [_nc(128, 8)], [_nc(128, 1)], 16, 44.6, 0.10),
    "gradient of an average pool, dilated": (
        "AvgPoolGradVm",
        [_nc(48, 5), _nc(48, 5), ("C1HWNCoC0", "float16", (48, 5, 5, 1, 16, 16))],
        [_nc(48, 17)],
        30,
        135.5,
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


def test_windows_that_profiles_keep() -> None:
    x, y = (("NC1HWC0", "float16", (22, 2, 994, w, 16)) for w in (59, 30))
    op = _op("MaxPool", [x], [y], 2, 2981.6)
    with pytest.raises(UnsupportedError, match="no ksize"):
        launch_of(replace(op, attrs=(("mode", "SAME"),)))
    kept = replace(op, attrs=(("ksize", (1, 5, 1, 1)), ("strides", (1, 1, 2, 1))))
    attrs = dict(launch_of(kept).args.attrs)
    assert attrs == {"kernel_shape": (5, 1), "pads": (2, 0, 2, 0), "strides": (1, 2)}
    row = replay([replace(kept, core_time_only=True)], load_chip("ascend310")).rows[0]
    assert row.predicted_us is not None and abs(row.predicted_us / 2981.6 - 1) < 0.15
    whole = replace(op, attrs=(("ksize", (1, 994, 59, 1)), ("strides", (1, 1, 1, 1))))
    whole = replace(whole, outputs=(replace(op.outputs[0], shape=(22, 2, 1, 1, 16)),))
    assert launch_of(whole).kernel == "PoolFold"
    every = replace(whole, attrs=(("ksize", (1, 2, 2, 1)), ("strides", (1, 1, 1, 1))))
    assert launch_of(every).kernel == "PoolFold"  # global_pooling, whatever its window


def test_rms_norm_on_a_910b4() -> None:
    x, scale = ("ND", "float16", (4096, 1, 1024)), ("ND", "float16", (1024,))
    rstd = ("ND", "float32", (4096, 1, 1))
    op = _op("RmsNorm", [x, scale], [x, rstd], 40, 32.19)
    row = replay([op], load_chip("ascend910b4")).rows[0]
    assert row.predicted_us is not None and row.block_dim == 40
    assert abs(row.predicted_us / 32.19 - 1) < 0.35
