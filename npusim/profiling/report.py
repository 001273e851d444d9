"""The text report of a run: what `npusim run` prints. Made for 100 columns, without colour."""

from __future__ import annotations

import io
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.profiling.host_report import bubble_table, host_lines
from npusim.profiling.summary import (
    bound_use,
    failed_outputs,
    limit_text,
    pipe_use,
    share,
    slowest,
    stream_use,
    type_use,
    within_limits,
)
from npusim.profiling.tables import table as _table
from npusim.profiling.text import (
    bar,
    duration,
    percent,
    quantity,
    resource,
    shorten,
    size,
    value_text,
)
from npusim.profiling.units import unit_line
from npusim.timeline import OpRecord, RunResult

REPORT_WIDTH = 100  #: columns, where the report goes to no terminal
_OTHER_COLUMNS = 70  #: width of the slowest-ops table without the column of names
_NAME_WIDTHS = (18, 60)  #: least and most width of that column
_FIDELITY = ("detail", "level")  #: options that say how truly the run was simulated
_KERNEL_WIDTH = 20
_BAR_WIDTH = 40
_STREAM_BAR = 24
_MAX_CHECK_ROWS = 20


def print_report(result: RunResult, console: Console, *, top: int = 15) -> None:
    """Print everything a run found, with its `top` slowest ops."""
    _print_lines(console, _header(result))
    _print_lines(console, _totals(result))
    if (host := result.timeline.host) is not None:
        _print_lines(console, host_lines(result.timeline, host))
        if (bubbles := bubble_table(result.timeline)) is not None:
            console.print(bubbles, "")
    if result.timeline.totals:
        console.print(_type_table(result), "")
    if result.timeline.ops:
        names = min(max(console.width - _OTHER_COLUMNS, _NAME_WIDTHS[0]), _NAME_WIDTHS[1])
        tables = [_slowest_table(result, top, names), _pipe_table(result), _type_table(result)]
        if any(op.stream for op in result.timeline.ops):
            tables.insert(1, _stream_table(result))
        for table in tables:
            console.print(table, "")
    if result.check:
        console.print(_check_table(result), Text(f"{check_line(result)}\n"))
    _print_lines(console, _footer(result))


def report_text(result: RunResult, *, top: int = 15) -> str:
    """The report as plain text, `REPORT_WIDTH` wide."""
    file = io.StringIO()
    print_report(result, Console(file=file, width=REPORT_WIDTH, highlight=False), top=top)
    lines = (line.rstrip() for line in file.getvalue().splitlines())
    return "\n".join(lines) + "\n"


def print_quiet(result: RunResult, console: Console) -> None:
    """Print the run in two lines, three with a check."""
    timeline = result.timeline
    console.print(
        Text(
            f"{result.model} on {result.chip}, {result.precision}, batch {result.batch}: "
            f"{duration(timeline.total_us)}, {quantity(result.throughput)}/s, {_rates(result)}"
        ),
        soft_wrap=True,
    )
    if timeline.tasks:
        worst = slowest(timeline, 1)
        text = f"bound by {_bounds(result, 4)}"
        if worst:
            text += (
                f"; slowest op {worst[0].name}, {duration(timeline.us(worst[0].cycles))}, "
                f"by {resource(worst[0].bound)}"
            )
        console.print(Text(text), soft_wrap=True)
    if timeline.host is not None:
        lines = "; ".join(text for _, text in host_lines(timeline, timeline.host))
        console.print(Text(lines), soft_wrap=True)
    if result.check:
        console.print(Text(check_line(result)), soft_wrap=True)


def check_line(result: RunResult) -> str:
    """The verdict over the graph outputs, in one line."""
    failed, limit = failed_outputs(result), limit_text(result.precision)
    if failed:
        return f"check FAILED: {', '.join(failed)}: not within the limit ({limit})"
    reference = f" of {result.check_reference}" if result.check_reference else ""
    outputs = len(result.outputs)
    which = "the output is" if outputs == 1 else f"all {outputs} outputs are"
    return f"check passed: {which} within the limit{reference} ({limit})"


Lines = list[tuple[str, str]]  #: label, text


def _print_lines(console: Console, lines: Lines) -> None:
    """A block of labelled lines, then an empty one."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", min_width=13)
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(label, Text(text))
    console.print(table, "")


def _header(result: RunResult) -> Lines:
    fidelity = {key: result.options[key] for key in _FIDELITY if key in result.options}
    options = {key: value for key, value in result.options.items() if key not in fidelity}
    return [
        ("model", f"{result.model}, batch {result.batch}, {result.precision}"),
        ("chip", result.chip),
        ("fidelity", _settings(fidelity)),
        ("options", _settings(options)),
    ]


def _settings(options: Mapping[str, object]) -> str:
    return " · ".join(f"{key} {value_text(value)}" for key, value in options.items()) or "default"


def _rates(result: RunResult) -> str:
    compute = share(result.achieved_tflops * 1e12, result.peak_flops)
    traffic = share(result.achieved_gbps * 1e9, result.peak_hbm)
    return (
        f"{quantity(result.achieved_tflops)} TFLOP/s ({percent(compute)} of peak), "
        f"HBM {quantity(result.achieved_gbps)} GB/s ({percent(traffic)})"
    )


def _totals(result: RunResult) -> Lines:
    timeline, memory = result.timeline, result.memory
    lines = [
        (
            "total time",
            f"{duration(timeline.total_us)}  ({timeline.total_cycles:,} cycles, "
            f"{timeline.tasks:,} tasks{', interrupted' if timeline.partial else ''})",
        ),
        ("throughput", f"{quantity(result.throughput)} samples/s"),
        (
            "compute",
            f"{quantity(result.achieved_tflops)} of {quantity(result.peak_flops / 1e12)} TFLOP/s  "
            f"({percent(share(result.achieved_tflops * 1e12, result.peak_flops))})",
        ),
        (
            "HBM",
            f"{quantity(result.achieved_gbps)} of {quantity(result.peak_hbm / 1e9)} GB/s  "
            f"({percent(share(result.achieved_gbps * 1e9, result.peak_hbm))})",
        ),
        (
            "memory peak",
            f"{size(memory.peak_bytes)}  (weights {size(memory.weight_bytes)}, "
            f"activations {size(memory.activation_bytes)})",
        ),
    ]
    if timeline.tasks:
        lines += [("run by", unit_line(timeline)), ("bound by", _bounds(result, 8))]
    return lines


def _bounds(result: RunResult, count: int) -> str:
    """The `count` bounds with the most time: "HBM 44.0 %, cube 30.1 %"."""
    shares = list(bound_use(result.timeline).items())[:count]
    return ", ".join(f"{resource(bound)} {percent(part)}" for bound, part in shares)


def _slowest_table(result: RunResult, top: int, name_width: int) -> Table:
    timeline = result.timeline
    ops = slowest(timeline, top)
    covered = share(sum(op.cycles for op in ops), timeline.total_cycles)
    table = _table(f"Slowest {len(ops)} of {len(timeline.ops)} ops: {percent(covered)} of the time")
    table.caption = "of bound: share of the time at that limit · × roof: time over the roofline"
    table.add_column("op", no_wrap=True)
    table.add_column("type/kernel", no_wrap=True)
    table.add_column("blocks", justify="right", no_wrap=True)
    table.add_column("time µs", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("bound", no_wrap=True)
    table.add_column("of bound", justify="right", no_wrap=True)
    table.add_column("× roof", justify="right", no_wrap=True)
    for op in ops:
        table.add_row(
            Text(shorten(op.name, name_width)),
            Text(shorten(_kernel(op), _KERNEL_WIDTH)),
            str(op.block_dim),
            f"{timeline.us(op.cycles):,.2f}",
            percent(share(op.cycles, timeline.total_cycles)),
            resource(op.bound),
            percent(op.bound_share),
            f"{op.cycles / op.roofline:,.2f}" if op.roofline else "–",
        )
    return table


def _stream_table(result: RunResult) -> Table:
    table = _table(
        "Streams: share of the run's time", "stream", ">tasks", ">busy", "", ">alone",
        ">waits for events", ">waits for cores",
    )  # fmt: skip
    table.caption = "busy: tasks run, launches included · alone: on no other stream meanwhile"
    for row in stream_use(result.timeline):
        shares = (row.alone, row.waited, row.queued)
        cells = (str(row.stream), str(row.tasks), percent(row.busy), bar(row.busy, _STREAM_BAR))
        table.add_row(*map(Text, (*cells, *map(percent, shares))))
    return table


def _kernel(op: OpRecord) -> str:
    return op.op_type if op.op_type.lower() == op.kernel.lower() else f"{op.op_type}/{op.kernel}"


def _pipe_table(result: RunResult) -> Table:
    table = _table("Pipes: share of the run's time, on the slowest core of each task")
    table.add_column("pipe")
    table.add_column("busy", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("stalled", justify="right")
    table.add_column("mostly for")
    for row in pipe_use(result.timeline):
        reason = f"{resource(row.reason)} ({percent(row.reason_share)})" if row.reason else ""
        table.add_row(
            resource(row.pipe),
            percent(row.busy),
            Text(bar(row.busy, _BAR_WIDTH)),
            percent(row.stalled),
            Text(reason),
        )
    return table


def _type_table(result: RunResult) -> Table:
    timeline = result.timeline
    table = _table("By operator type")
    table.add_column("type", no_wrap=True)
    for name in ("count", "time µs", "share", "TFLOP/s", "HBM GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("mostly bound by")
    for row in type_use(timeline):
        us = timeline.us(row.cycles)
        table.add_row(
            Text(shorten(row.op_type, 30)),
            str(row.count),
            f"{us:,.2f}",
            percent(row.share),
            f"{share(row.flops, us) / 1e6:,.2f}",
            f"{share(row.bytes_hbm, us) / 1e3:,.1f}",
            resource(row.bound),
        )
    return table


def _check_table(result: RunResult) -> Table:
    """Outputs first, then the tensors that are worst; no more than `_MAX_CHECK_ROWS`."""
    reference = f" with {result.check_reference}" if result.check_reference else ""
    names = sorted(
        result.check,
        key=lambda name: (name not in result.outputs, -result.check[name].max_rel_err),
    )
    shown = names[:_MAX_CHECK_ROWS]
    more = f", {len(shown)} of {len(names)} tensors, the worst" if len(names) > len(shown) else ""
    table = _table(f"Compared{reference}{more}")
    table.add_column("tensor", no_wrap=True)
    for name in ("max abs err", "max rel err", "cosine"):
        table.add_column(name, justify="right")
    table.add_column("")
    for name in shown:
        check = result.check[name]
        verdict = "ok" if within_limits(result, name) else "NOT within the limit"
        table.add_row(
            Text(shorten(name, 40)),
            f"{check.max_abs_err:.3e}",
            f"{check.max_rel_err:.3e}",
            f"{check.cosine:.6f}",
            f"output, {verdict}" if name in result.outputs else verdict,
        )
    return table


def _footer(result: RunResult) -> Lines:
    speed = result.speed
    computing = f" ({speed.computing_s:.2f} s of it computing)" if speed.computing_s else ""
    lines = [
        (
            "simulator",
            f"{speed.wall_s:.2f} s{computing}, {speed.events:,} events, "
            f"{quantity(speed.events_per_s)} events/s",
        )
    ]
    return lines + [("note", note) for note in result.notes]
