"""Tables of the reports: rich ones, plain with left-aligned titles, and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.timeline.ablated import Claim

_FIRST_WIDTH = 14  #: of the first column, where the others would press it


def table(title: str, *columns: str) -> Table:
    """An empty table; a column that starts with ">" is right-justified."""
    found = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        caption_justify="left",
        caption_style="dim",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in columns:
        found.add_column(
            column.removeprefix(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
            no_wrap=column.startswith(">"),
            min_width=_FIRST_WIDTH if column == columns[0] else None,
        )
    return found


def lines(console: Console, labelled: Sequence[tuple[str, str]]) -> None:
    """A block of labelled lines, then an empty one."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", min_width=10)
    grid.add_column(overflow="fold")
    for label, text in labelled:
        grid.add_row(label, Text(text))
    console.print(grid, "")


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of a Markdown page."""
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    body = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([*head, *body]) + "\n"


def claims_table(claims: Sequence[Claim]) -> list[str]:
    """Published claims beside what was found, as a Markdown table; nothing without any."""
    rows = [[c.topic, c.claim, c.found] for c in claims]
    return [markdown(("topic", "claim", "npusim, and what the chip can do"), rows)] if rows else []


def print_claims(claims: Sequence[Claim], console: Console) -> None:
    """The same on the terminal, after an empty line."""
    console.print("")
    for claim in claims:
        console.print(f"{claim.topic}: {claim.claim}", style="bold")
        console.print(f"{claim.found}\n")
