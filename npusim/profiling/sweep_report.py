"""The rows of a sweep as a table: what differs between them, and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npusim.profiling.sweep_plot import written

if TYPE_CHECKING:
    from rich.console import Console

_AROUND = ("key", "status", "error", "chip_hash", "code", "wall_s")


def print_rows(
    rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], terminal: Console, top: int = 30
) -> None:
    """Print the first rows, their settings and metrics; settings that all share are left out."""
    from rich import box
    from rich.table import Table

    varying = [name for name in _settings(rows, metrics) if _differs(rows, name)]
    good = [row for row in rows if row["status"] == "ok"]
    cells = [
        [*(_setting(n, row.get(n)) for n in varying), *(_number(row.get(n)) for n in metrics)]
        for row in good[:top]
    ]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for n, name in enumerate([*varying, *metrics]):
        widest = max((len(line[n]) for line in cells), default=1)
        table.add_column(
            name.removeprefix("core.").removesuffix(".size"), overflow="fold", min_width=widest,
            justify="left" if n < len(varying) else "right",
        )  # fmt: skip
    for line in cells:
        table.add_row(*line)
    if good:
        terminal.print(table)
    if len(good) > top:
        terminal.print(f"… {len(good) - top} more rows")
    failed = [row for row in rows if row["status"] != "ok"]
    if failed:
        first = str(failed[0]["error"]).split(" | ")[0].removeprefix("error: ")
        terminal.print(f"{len(failed)} of {len(rows)} points failed; the first: {first}")


def _settings(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in _AROUND and name not in metrics]


def _differs(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return len({row.get(name) for row in rows}) > 1


def _setting(name: str, value: Any) -> str:
    return "" if value is None else written(name, value)


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.4g}"
