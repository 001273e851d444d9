"""What `npusim compile` prints: the passes and what each changed. Made for 100 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.profiling.tables import lines, table
from npusim.profiling.text import shorten, size

_NAME_WIDTH = 30
_KINDS = {"graph_fusion": "graph", "ub_fusion": "UB"}  #: CANN's words, shorter


class ReportedPass(Protocol):
    """A pass with what it changed (see `npusim.compiler.PassReport`)."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def ran(self) -> bool: ...
    @property
    def ops_before(self) -> int: ...
    @property
    def ops_after(self) -> int: ...
    @property
    def effects(self) -> int: ...
    @property
    def saved_bytes(self) -> int: ...
    @property
    def casts(self) -> int: ...
    @property
    def trans_data(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class ReportedDecision(Protocol):
    """A fusion that was looked at (see `npusim.compiler.Decision`)."""

    @property
    def rewrite(self) -> str: ...
    @property
    def nodes(self) -> tuple[str, ...]: ...
    @property
    def taken(self) -> bool: ...
    @property
    def reason(self) -> str: ...


def print_passes(
    passes: Sequence[ReportedPass], console: Console, *, heading: Sequence[tuple[str, str]]
) -> None:
    """Print the passes in order.

    Args:
        heading: labelled lines on top (model, chip, options).
    """
    lines(console, heading)
    console.print(_passes_table(passes), "")


def _passes_table(passes: Sequence[ReportedPass]) -> Table:
    found = table(
        "Passes", "pass", "kind", ">ops", ">changed", ">GM saved", ">Casts", ">TransData", ">ms",
    )  # fmt: skip
    for p in passes:
        cells = (
            (
                f"{p.ops_before} → {p.ops_after}" if p.ops_before != p.ops_after
                else str(p.ops_after),
                str(p.effects or "·"), _bytes(p.saved_bytes), _change(p.casts),
                _change(p.trans_data), f"{p.seconds * 1e3:.0f}",
            )
            if p.ran
            else ("off", *["·"] * 5)
        )  # fmt: skip
        found.add_row(*map(Text, (p.name, _KINDS.get(p.kind, p.kind), *cells)))
    return found


def _bytes(saved: int) -> str:
    if not saved:
        return "·"
    return f"{'-' if saved < 0 else ''}{size(abs(saved))}"


def _change(n: int) -> str:
    return f"{n:+d}" if n else "·"


def print_decisions(decisions: Sequence[ReportedDecision], console: Console, top: int) -> None:
    """Print the fusions that were looked at: first those refused, equal reasons together."""
    groups: dict[tuple[bool, str, str], list[tuple[str, ...]]] = {}
    for d in decisions:
        groups.setdefault((d.taken, d.rewrite, d.reason), []).append(d.nodes)
    found = table("Fusions looked at", "pass", ">times", "for example", "taken", "why")
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
    for (taken, rewrite, reason), nodes in ordered[:top]:
        example = " + ".join(shorten(n, _NAME_WIDTH) for n in nodes[0])
        cells = (rewrite, str(len(nodes)), example, "yes" if taken else "no", reason)
        found.add_row(*map(Text, cells))
    if len(ordered) > top:
        found.caption = f"{len(ordered) - top} more kinds of decisions: --top {len(ordered)}"
    console.print(found)
