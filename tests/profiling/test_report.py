"""The report: 100 columns, plain text, everything the issue asks for."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from npusim.profiling.report import check_line, print_quiet, report_text
from npusim.profiling.summary import (
    bound_use,
    failed_outputs,
    pipe_use,
    slowest,
    stream_use,
    type_use,
)
from npusim.profiling.text import bar, duration, quantity, shorten, size
from npusim.timeline import RunResult, TensorCheck

GOOD = TensorCheck(1e-4, 5e-5, 0.99995)


def quiet_text(result: RunResult) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_quiet(result, console)
    return console.file.getvalue()


def test_plain_and_within_100_columns(make_result) -> None:
    text = report_text(make_result(check={"logits": GOOD}))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "part",
    [
        "resnet50, batch 1, fp16", "ascend910a", "detail fast", "set hbm.bandwidth=2.4TB/s",
        "142.8 µs", "128,550 cycles", "7,001 samples/s", "2.943 of 230.4 TFLOP/s", "515.1 of 1,200",
        "63.9 MiB", "Slowest 6 of 6 ops", "Conv/conv2d", "MTE1", "AI CPU", "█", "By operator type",
        "onnxruntime 1.32.0", "5.000e-05", "check passed", "456,789 events", "370,169 events/s",
        "NonZero has no AI Core kernel",
    ],
)  # fmt: skip
def test_states(make_result, part: str) -> None:
    assert part in report_text(make_result(check={"logits": GOOD}))


def test_top_limits_the_table_and_long_names_lose_their_middle(make_result) -> None:
    text = report_text(make_result(), top=3)
    assert "Slowest 3 of 6 ops" in text and "/tiny/Add" not in text
    assert "/layer1/layer1.…of_a_node/Conv" not in text  # the fourth
    assert "/layer1/layer1.…of_a_node/Conv" in report_text(make_result())


def test_streams_have_a_table_where_there_are_several(make_result) -> None:
    assert "Streams" not in report_text(make_result())
    result = make_result(streams=2)
    text = report_text(result)
    assert "Streams: share of the run's time" in text and "waits for cores" in text
    assert max(map(len, text.splitlines())) <= 100
    first, second = stream_use(result.timeline)
    assert first.tasks == second.tasks == 3
    total = result.timeline.total_cycles
    ends = [max(o.end for o in result.timeline.ops if o.stream == s) for s in (0, 1)]
    alone = (first, second)[ends.index(max(ends))].alone
    assert alone >= (max(ends) - min(ends)) / total - 1e-9
    assert first.alone + second.alone <= 1 and first.waited == first.queued == 0


def test_names_are_not_markup(make_result) -> None:
    result = make_result()
    first, *others = result.timeline.ops
    ops = (replace(first, name="[red]x[/red]"), *others)
    result = replace(result, timeline=replace(result.timeline, ops=ops))
    assert "[red]x[/red]" in report_text(result)
    assert "[red]x[/red]" in quiet_text(result)


def test_quiet_is_two_lines_and_a_third_for_the_check(make_result) -> None:
    assert len(quiet_text(make_result()).splitlines()) == 2
    lines = quiet_text(make_result(check={"logits": GOOD})).splitlines()
    assert len(lines) == 3 and lines[2].startswith("check passed")


@pytest.mark.parametrize(
    ("precision", "check", "good"),
    [
        ("fp16", TensorCheck(1.0, 1.0, 0.999), True),
        ("fp16", TensorCheck(0.0, 0.0, 0.998), False),
        ("bf16", TensorCheck(0.0, 0.0, float("nan")), False),
        ("fp32", TensorCheck(1.0, 1e-4, 0.0), True),
        ("fp32", TensorCheck(0.0, 1.1e-4, 1.0), False),
    ],
)
def test_limits_of_the_check(make_result, precision, check, good) -> None:
    result = make_result(check={"logits": check}, precision=precision)
    assert failed_outputs(result) == ([] if good else ["logits"])
    assert check_line(result).startswith("check passed" if good else "check FAILED: logits")


def test_an_intermediate_tensor_does_not_fail_a_check_but_a_missing_output_does(
    make_result,
) -> None:
    bad = TensorCheck(9.0, 9.0, 0.5)
    assert failed_outputs(make_result(check={"logits": GOOD, "hidden": bad})) == []
    assert failed_outputs(make_result(check={"hidden": GOOD})) == ["logits"]
    assert failed_outputs(make_result()) == []


def test_sums(make_result) -> None:
    timeline = make_result().timeline
    assert [op.name for op in slowest(timeline, 2)] == ["/conv1/Conv", "/NonZero"]
    conv = type_use(timeline)[0]
    assert (conv.op_type, conv.count, conv.bound) == ("Conv", 2, "mte1")
    assert conv.cycles == 44_400 + 18_400
    assert sum(bound_use(timeline).values()) == pytest.approx(1)
    cube = pipe_use(timeline)[0]
    assert cube.pipe == "cube"
    assert cube.busy == pytest.approx((19_700 + 12_900 + 420) / timeline.total_cycles)
    assert (cube.reason, cube.reason_share) == ("mte2", pytest.approx(cube.stalled))
    for use in pipe_use(make_result(streams=3).timeline):
        assert 0 <= use.busy + use.stalled <= 1


def test_pieces_of_text() -> None:
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abc", 3) == "abc"
    assert [len(bar(x, 10)) for x in (0, 1e-9, 0.5, 1, 1.2)] == [10] * 5
    assert (bar(0, 4), bar(1e-9, 4), bar(1, 4)) == ("····", "█···", "████")
    assert (duration(3.456), duration(12_345), duration(2e6)) == ("3.46 µs", "12.35 ms", "2.000 s")
    assert (size(512), size(2048), size(3 << 30)) == ("512 B", "2.0 KiB", "3.0 GiB")
    assert (quantity(0), quantity(1234.5), quantity(96.24), quantity(0.04131)) == (
        "0", "1,234", "96.24", "0.04131",
    )  # fmt: skip


def test_an_fp16_output_of_an_fp32_run_is_judged_by_its_cosine(make_result) -> None:
    result = make_result(precision="fp32")
    name = next(iter(result.outputs))
    result.check = {name: TensorCheck(1e-3, 1e-3, 0.9999999)}
    result.outputs = {name: result.outputs[name].astype("float32")}
    assert failed_outputs(result) == [name]
    result.outputs = {name: result.outputs[name].astype("float16")}
    assert failed_outputs(result) == []
