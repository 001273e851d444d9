"""One table, for the terminal and as Markdown; and the facts about this machine beside it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import npusim


@dataclass(frozen=True)
class Sheet:
    """A titled table of strings."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def show(self) -> None:
        """Print it."""
        console = Console()
        console.width = max(console.width, 140)
        table = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD)
        for column in self.columns:
            table.add_column(column)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> str:
        """As a Markdown table."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def publish(sheets: Sequence[Sheet], note: str, path: Path, readme: Path | None) -> None:
    """Print the tables, write them to a Markdown file, and renew their copies in the README.

    A table of the README stands between `<!-- TITLE -->` and `<!-- end -->`.
    """
    written = ""
    page = "" if readme is None else readme.read_text(encoding="utf-8")
    for sheet in sheets:
        sheet.show()
        body = f"{sheet.markdown()}\n\n" + (f"{note}\n\n" if note else "")
        written += f"## {sheet.title}\n\n{body}"
        if readme is not None:
            page = _renewed(page, sheet.title, body)
    print(note)
    path.write_text(written.rstrip() + "\n", encoding="utf-8")
    if readme is not None:
        readme.write_text(page, encoding="utf-8")


def _renewed(page: str, title: str, body: str) -> str:
    """The page with another body under a table's mark."""
    before, mark, rest = page.partition(f"<!-- {title} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not (mark and end):
        raise SystemExit(f"the README has no <!-- {title} --> … <!-- end -->")
    return f"{before}{mark}\n{body}{end}{after}"


def machine_facts() -> dict[str, str]:
    """What a figure of speed depends on."""
    return {
        "npusim": npusim.__version__,
        "processor": _processor(),
        "cores": str(cores()),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "BLAS": _blas(),
    }


def facts_line(facts: dict[str, str]) -> str:
    """The facts in one line."""
    return " · ".join(f"{key} {value}" for key, value in facts.items())


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _processor() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2] for line in info.splitlines() if line.startswith("model name")]
    return " ".join(names[0].split()) if names else platform.machine()


def _blas() -> str:
    """Library, kernel and threads of numpy's BLAS."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "unknown (threadpoolctl is not installed)"
    found = [x for x in threadpool_info() if x["user_api"] == "blas"]
    return ", ".join(
        f"{x['internal_api']} {x['version']} {x.get('architecture', '')} {x['num_threads']} threads"
        for x in found
    )
