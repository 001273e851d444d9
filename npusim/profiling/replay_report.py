"""What `npusim replay` prints and writes: measured against predicted. Made for 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.profiling.summary import share
from npusim.profiling.tables import lines, table
from npusim.profiling.text import duration, percent, resource, shorten, signed
from npusim.timeline.replayed import ReplayedOp, accuracy, grouped

_TYPE_WIDTH = 34
_SHAPES_WIDTH = 38
_REASON_WIDTH = 50


def print_replay(
    ops: Sequence[ReplayedOp],
    console: Console,
    *,
    heading: Sequence[tuple[str, str]],
    unchanged: Sequence[ReplayedOp] = (),
    top: int = 15,
) -> None:
    """Print a replay.

    Args:
        heading: labelled lines on top (profile, chip, mode).
        unchanged: the same rows on the chip without changes, for a what-if.
        top: rows in the tables of types and of the largest differences.
    """
    lines(console, heading)
    console.print(_net_table(ops, unchanged), "")
    console.print(_type_table(ops, unchanged, top), "")
    if missing := [op for op in ops if op.predicted_us is None]:
        console.print(_missing_table(ops, missing, top), "")
    console.print(_apart_table(ops, top), "")


def print_replay_quiet(
    ops: Sequence[ReplayedOp], console: Console, unchanged: Sequence[ReplayedOp] = ()
) -> None:
    """Print a replay in one line a net."""
    for net, rows in grouped(ops, lambda op: op.net).items():
        a = accuracy(rows)
        text = (
            f"{net}: {a.covered} of {a.rows} rows, {percent(a.coverage)} of the time; measured "
            f"{duration(a.measured)}, predicted {duration(a.predicted)}, "
            f"error {percent(a.weighted)}, sum {signed(a.sum_error)}"
        )
        if unchanged:
            before = accuracy(op for op in unchanged if op.net == net)
            text += f", {_speed(before.predicted, a.predicted)} the unchanged chip"
        console.print(Text(text), soft_wrap=True)


def replay_json(
    ops: Sequence[ReplayedOp],
    *,
    chip: str,
    mode: str,
    changes: Sequence[str],
    unchanged: Sequence[ReplayedOp] = (),
) -> dict[str, object]:
    """The replay as plain data: `rows` has one entry per input row, in its order."""
    rows: list[dict[str, object]] = [
        {
            "net": op.net,
            "name": op.name,
            "op_type": op.op_type,
            "shapes": op.shapes,
            "count": op.count,
            "measured_us": op.measured_us,
            "predicted_us": op.predicted_us,
            "reason": op.reason or None,
            "bound": op.bound or None,
            "block_dim": op.block_dim,
            "roofline_us": op.roofline_us,
        }
        for op in ops
    ]
    for row, before in zip(rows, unchanged, strict=False):
        row["unchanged_us"] = before.predicted_us
    nets = {net: accuracy(group) for net, group in grouped(ops, lambda op: op.net).items()}
    return {
        "chip": chip,
        "mode": mode,
        "set": list(changes),
        "nets": {
            net: {
                "rows": a.rows,
                "covered": a.covered,
                "coverage": a.coverage,
                "measured_us": a.measured,
                "predicted_us": a.predicted,
                "weighted_error": a.weighted,
                "bias": a.bias,
                "sum_error": a.sum_error,
            }
            for net, a in nets.items()
        },
        "rows": rows,
    }


def _speed(before: float, after: float) -> str:
    return f"{share(before, after):.2f} ×" if before and after else "-"


def _net_table(ops: Sequence[ReplayedOp], unchanged: Sequence[ReplayedOp]) -> Table:
    columns = ["net", ">rows", ">coverage", ">measured", ">predicted", ">error", ">bias", ">sum"]
    found = table("By net", *columns, *([">speed-up"] if unchanged else []))
    found.caption = (
        "error: Σ|predicted − measured| / Σ measured; bias: geometric mean; sum: of the whole net"
        + ("; speed-up: over the unchanged chip" if unchanged else "")
    )
    nets = grouped(ops, lambda op: op.net)
    everything = {"total": list(ops)} if len(nets) > 1 else {}
    for net, rows in {**nets, **everything}.items():
        a = accuracy(rows)
        cells = [
            shorten(net, 30), str(a.rows), percent(a.coverage), duration(a.measured),
            duration(a.predicted), percent(a.weighted), signed(a.bias), signed(a.sum_error),
        ]  # fmt: skip
        if unchanged:
            same = [op for op in unchanged if net == "total" or op.net == net]
            cells.append(_speed(accuracy(same).predicted, a.predicted))
        found.add_row(*map(Text, cells))
    return found


def _type_table(ops: Sequence[ReplayedOp], unchanged: Sequence[ReplayedOp], top: int) -> Table:
    groups = grouped((op for op in ops if op.predicted_us is not None), lambda op: op.op_type)
    before = grouped(unchanged, lambda op: op.op_type)
    columns = ["type", ">rows", ">measured", ">predicted", ">error", ">bias", "bound"]
    found = table("By op type", *columns, *([">speed-up"] if unchanged else []))
    if len(groups) > top:
        found.caption = f"and {len(groups) - top} more types"
    for op_type, rows in list(groups.items())[:top]:
        a = accuracy(rows)
        bound = next(iter(_bounds(rows)))
        cells = [
            shorten(op_type, _TYPE_WIDTH), str(a.rows), duration(a.measured),
            duration(a.predicted), percent(a.weighted), signed(a.bias), resource(bound),
        ]  # fmt: skip
        if unchanged:
            cells.append(_speed(accuracy(before.get(op_type, [])).predicted, a.predicted))
        found.add_row(*map(Text, cells))
    return found


def _bounds(rows: Sequence[ReplayedOp]) -> dict[str, float]:
    """Bound → predicted time, the largest first."""
    times: dict[str, float] = {}
    for op in rows:
        times[op.bound] = times.get(op.bound, 0.0) + op.predicted
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _missing_table(ops: Sequence[ReplayedOp], missing: Sequence[ReplayedOp], top: int) -> Table:
    total = sum(op.measured for op in ops)
    found = table("Not covered", "type", ">rows", ">measured", ">share", "reason")
    groups = grouped(missing, lambda op: op.op_type)
    if len(groups) > top:
        found.caption = f"and {len(groups) - top} more types"
    for op_type, rows in list(groups.items())[:top]:
        measured = sum(op.measured for op in rows)
        cells = (
            shorten(op_type, _TYPE_WIDTH), str(len(rows)), duration(measured),
            percent(share(measured, total)), shorten(rows[0].reason, _REASON_WIDTH - 20),
        )  # fmt: skip
        found.add_row(*map(Text, cells))
    return found


def _apart_table(ops: Sequence[ReplayedOp], top: int) -> Table:
    found = table(
        "Largest differences (all launches of a row)",
        "type", "shapes", ">count", ">measured", ">predicted", ">ratio", "bound",
    )  # fmt: skip
    apart = sorted((op for op in ops if op.predicted_us is not None), key=lambda op: -abs(op.error))
    for op in apart[:top]:
        cells = (
            shorten(op.op_type, 18), shorten(op.shapes, _SHAPES_WIDTH - 10), str(op.count),
            duration(op.measured), duration(op.predicted),
            f"{share(op.predicted, op.measured):.2f}",
            f"{resource(op.bound)} {100 * op.bound_share:.0f} %",
        )  # fmt: skip
        found.add_row(*map(Text, cells))
    return found
