"""The replay report at its extremes: wide numbers, nothing covered, a what-if."""

from __future__ import annotations

import io

from rich.console import Console

from npusim.profiling.replay_report import print_replay, print_replay_quiet
from npusim.profiling.text import signed
from npusim.profiling.validation_report import print_validation
from npusim.timeline.replayed import ReplayedOp


def row(op_type: str, predicted: float | None, factor: float = 1.0) -> ReplayedOp:
    return ReplayedOp(
        f"a/{'long_' * 12}rank", "n", op_type, 123456, 1e6,
        None if predicted is None else predicted * factor, "" if predicted else "a reason " * 20,
        "vector", 1.0, 30, 5.0, "32,4,56,56,16; " * 9,
    )  # fmt: skip


def rows(factor: float = 1.0) -> list[ReplayedOp]:
    long = "FusionOp_Conv2DBackpropInput_AddN_ReluGradV2"
    return [row(long, 2.5e9, factor), row("MatMul", 1.0, factor), row(long + "X", None)]


def lines(draw, *args, **given) -> list[str]:
    file = io.StringIO()
    draw(*args, Console(file=file, width=100, highlight=False), **given)
    return file.getvalue().splitlines()


def test_100_columns_hold_extreme_rows() -> None:
    found = lines(print_replay, rows(0.5), heading=[("chip", "toy")], unchanged=rows())
    assert max(map(len, found)) <= 100
    text = "\n".join(found)
    assert "2.00 ×" in text and "Not covered" in text and "33.3 %" in text
    assert "..." not in text and "a reason" in text


def test_nothing_covered() -> None:
    nothing = [row("MatMul", None)]
    assert any("Not covered" in line for line in lines(print_replay, nothing, heading=[]))
    assert "0.0 %" in lines(print_replay_quiet, nothing)[0]
    validated = lines(print_validation, {"toy": nothing})
    assert any(line.split()[:4] == ["matmul", "1", "0.0", "%"] for line in validated)


def test_signed() -> None:
    assert [signed(v) for v in (0.1234, -0.5, 5.354)] == ["+12.3 %", "-50.0 %", "+535 %"]
