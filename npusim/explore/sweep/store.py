"""The rows of a sweep on disk: a CSV line as each point finishes, Parquet at the end.

A crash loses nothing that had finished: a line that is not whole is dropped when the sweep goes on.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from npusim.errors import NpusimError
from npusim.explore.sweep.errors import ExperimentError

Row = dict[str, Any]


class RowStore:
    """`rows.csv` in a folder, open for appending. Use as a context.

    Args:
        resume: go on with the rows that are there; else the folder must have none.

    Attributes:
        done: rows that were there, by key.

    Raises:
        ExperimentError: rows are there and `resume` is not; their columns differ; or the folder
            cannot be written.
    """

    def __init__(self, folder: Path, columns: Sequence[str], resume: bool) -> None:
        self.path = folder / "rows.csv"
        self._columns = list(columns)
        self.done: dict[str, Row] = {}
        self._file: IO[str] | None = None
        if self.path.exists():
            if not resume:
                raise ExperimentError(
                    f"{self.path} is there already", "a folder without rows, or --resume",
                    "add --resume to go on, or choose another --out",
                )  # fmt: skip
            self._take_up()

    def __enter__(self) -> RowStore:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = not self.path.exists() or not self.path.stat().st_size
            self._file = self.path.open("a", encoding="utf-8", newline="")
        except OSError as error:
            raise _unwritable(self.path, error) from None
        if new:
            self._write(self._columns)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, row: Row) -> None:
        """Append a row and see that it is on disk."""
        self._write([_text(row.get(name)) for name in self._columns])

    def _write(self, cells: Sequence[str]) -> None:
        assert self._file is not None, "used as a context"
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        try:
            self._file.write(line.getvalue())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from None

    def _take_up(self) -> None:
        """Read what is whole, and cut off what is not; failed points run again."""
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        rows = list(csv.DictReader(io.StringIO(whole)))
        found = list(rows[0]) if rows else self._columns
        if found != self._columns:
            raise ExperimentError(
                f"{self.path} has other columns than this experiment",
                ", ".join(self._columns),
                "choose another --out",
            )
        kept = [row for row in rows if row["status"] == "ok"]
        self.done = {row["key"]: typed(row) for row in kept}
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self._columns)
        writer.writerows([row[name] for name in self._columns] for row in kept)
        beside = self.path.with_suffix(".new")
        beside.write_text(out.getvalue(), encoding="utf-8")
        beside.replace(self.path)


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file, numbers as numbers.

    Raises:
        ExperimentError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(
            f"{path}: cannot be read ({error})", "rows.csv of a sweep", "check the path"
        ) from None
    return [typed(row) for row in csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))]


_WORDS = {"key", "status", "error", "chip_hash", "code", "workload", "chip", "precision", "shapes"}


def typed(row: Row) -> Row:
    """A row of text with numbers where there are numbers, None where there is nothing."""
    return {k: v if k in _WORDS else _typed(v) for k, v in row.items()}


def _typed(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _text(value: object) -> str:
    return "" if value is None else str(value)


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write rows as CSV, with all their columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)
    try:
        path.write_text(out.getvalue(), encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from None


def write_parquet(rows: Sequence[Row], path: Path) -> bool:
    """Write rows as Parquet; False where pyarrow is not installed (`pip install npusim[sweep]`)."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return False
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    try:
        pq.write_table(pa.table(columns), path)
    except OSError as error:
        raise _unwritable(path, error) from None
    return True


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: numbers, or text where they differ."""
    kinds = {type(v) for v in values if v is not None}
    if kinds == {int, float}:
        return [None if v is None else float(v) for v in values]
    return values if len(kinds) < 2 else [None if v is None else str(v) for v in values]


def _unwritable(path: Path, error: OSError) -> NpusimError:
    return ExperimentError(
        f"{path}: cannot be written: {error.strerror or error}",
        "a folder that may be written to",
        "choose another --out",
    )
