"""Replay of a profile: rows, reasons, L2 from row to row, processes, the plain roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim.chip import load_chip
from npusim.explore.replay import replay
from npusim.explore.replay.roofline import roofline_us
from npusim.explore.replay.workers import workers
from npusim.frontends.recorded import RecordedOp, RecordedTensor

CHIP = load_chip("ascend910-30c")


def tensor(*shape: int, format: str = "ND", dtype: str = "float16") -> RecordedTensor:
    return RecordedTensor(format, dtype, shape)


def op(op_type: str, inputs: tuple, outputs: tuple, net: str = "n", **given) -> RecordedOp:
    fields = {"core_type": "AI_CORE", "block_dim": 0, "count": 1, "measured_us": 20.0} | given
    return RecordedOp(net, op_type, op_type, inputs=inputs, outputs=outputs, **fields)


PRODUCT = op("MatMul", (tensor(256, 64), tensor(64, 128)), (tensor(256, 128),), block_dim=8)


def test_rows_and_reasons() -> None:
    odd = replace(PRODUCT, inputs=(tensor(256, 64), tensor(65, 128)))
    ops = [PRODUCT, replace(PRODUCT, op_type="NoSuchOp"), odd]
    found = replay(ops, CHIP)
    done, *others = found.rows
    assert done.predicted_us and done.bound and done.reason == ""
    assert [r.predicted_us for r in others] == [None] * 2
    assert others[0].reason == "unknown operator type"
    assert "no product" in others[1].reason
    assert found.coverage == pytest.approx(1 / 3)
    assert [p.predicted_us for p in found.plain(CHIP)] == [r.predicted_us for r in found.rows]


def test_an_ai_cpu_row_takes_its_launch_and_its_bytes() -> None:
    x = tensor(1000, 1000)
    on_cpu = op("AnythingAtAll", (x,), (x,), core_type="AI_CPU")
    (row,) = replay([on_cpu], CHIP).rows
    assert row.bound == "aicpu" and row.reason == ""
    assert row.predicted_us == pytest.approx((75e-6 + 4e6 / 2e9) * 1e6)


def test_l2_is_carried_within_a_net_only() -> None:
    ops = [PRODUCT, PRODUCT, replace(PRODUCT, net="other")]
    cold, warm, other = (r.predicted_us for r in replay(ops, CHIP).rows)
    assert warm < cold == other
    assert {r.predicted_us for r in replay(ops, CHIP, in_sequence=False).rows} == {cold}


def test_a_reshape_that_keeps_rows_is_the_same_memory() -> None:
    x = tensor(64, 50, 768, dtype="float32")  # narrow sources are results of the op before
    relu = op("Relu", (x,), (x,), block_dim=30)
    for source, hot in (
        (tensor(3200, 768, dtype="float32"), True),
        (tensor(768, 3200, dtype="float32"), False),
    ):
        nz = tensor(
            source.shape[1] // 16,
            source.shape[0] // 16,
            16,
            16,
            dtype="float32",
            format="FRACTAL_NZ",
        )
        change = op("TransData", (source,), (nz,), block_dim=30)
        *_, after = replay([relu, change], CHIP).rows
        (alone,) = replay([change], CHIP).rows
        assert (after.predicted_us < alone.predicted_us) is hot


def test_what_an_assign_copies_is_in_l2() -> None:
    x = tensor(768, 768)
    (row,) = replay([op("Assign", (x, x), (x,), block_dim=30)], CHIP).rows
    (cold,) = replay([op("Assign", (x, x), (x,), block_dim=30)], CHIP, in_sequence=False).rows
    assert row.predicted_us < cold.predicted_us


def test_idle_blocks_are_launched() -> None:
    """TransData of 100 rows keeps two blocks busy, whatever was launched."""
    nz = tensor(48, 7, 16, 16, format="FRACTAL_NZ")
    found = replay([op("TransData", (tensor(100, 768),), (nz,), block_dim=30)], CHIP).rows[0]
    assert found.block_dim == 30
    assert found.predicted_us > 1e6 * (CHIP.scheduler.launch + 30 * CHIP.scheduler.per_block)


def test_core_time_leaves_out_the_launch() -> None:
    ops = [PRODUCT, replace(PRODUCT, core_time_only=True)]
    whole, core = (r.predicted_us for r in replay(ops, CHIP, in_sequence=False).rows)
    launch = CHIP.scheduler.launch + CHIP.scheduler.per_block * 8
    assert whole - core == pytest.approx(launch * 1e6, abs=2e6 / CHIP.clock)


def test_processes_change_nothing() -> None:
    ops = [
        op("MatMul", (tensor(m, 64), tensor(64, 32)), (tensor(m, 32),), block_dim=b)
        for m in range(16, 256, 16) for b in (1, 2)
    ]  # fmt: skip
    stages = []
    shared = replay(ops, CHIP, jobs=2, progress=lambda *done: stages.append(done))
    assert shared == replay(ops, CHIP)
    assert ("plan", 30, 30) in stages and {s for s, *_ in stages} == {"plan", "time"}


def test_workers_keep_the_order() -> None:
    with workers(2) as each:
        assert each("s", str, range(100)) == [str(i) for i in range(100)]


def seconds(work: RecordedOp) -> float:
    """The roofline without its launch."""
    return roofline_us(replace(work, core_time_only=True), CHIP) / 1e6


def test_roofline_of_products_and_bytes() -> None:
    big = op("MatMul", (tensor(4096, 4096), tensor(4096, 4096)), (tensor(4096, 4096),))
    assert seconds(big) == pytest.approx(2 * 4096**3 / CHIP.cube_flops("float16"))
    add = op("Add", (tensor(1000, 1000), tensor(1000, 1000)), (tensor(1000, 1000),))
    assert seconds(add) == pytest.approx(6e6 / CHIP.hbm.bandwidth)
    assert roofline_us(add, CHIP) / 1e6 == pytest.approx(seconds(add) + CHIP.scheduler.launch)


def test_roofline_of_the_three_convolutions_is_one() -> None:
    x, y = (tensor(32, c1, 28, 28, 16, format="NC1HWC0") for c1 in (16, 32))
    w = tensor(16 * 9, 32, 16, 16, format="FRACTAL_Z")
    flops = 2 * 32 * 512 * 28 * 28 * 256 * 9
    for name, inputs, output in (
        ("Conv2D", (x, w), y),
        ("Conv2DBackpropInput", (y, w), x),
        ("Conv2DBackpropFilter", (x, y), w),
    ):
        time = seconds(op(name, inputs, (output,)))
        assert time == pytest.approx(flops / CHIP.cube_flops("float16")), name
