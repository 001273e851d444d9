"""The files of a run: JSON, trace and report text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from npusim.errors import NpusimError
from npusim.profiling.json_export import result_json
from npusim.profiling.report import report_text
from npusim.profiling.trace import write_trace
from npusim.timeline import RunResult

Write = Callable[[Path], None]


class WriteError(NpusimError):
    """A file of results cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{path}: cannot be written: {error.strerror or error}",
            "a path in a folder that exists and may be written to",
            "correct the path",
        )


def write_results(
    result: RunResult,
    *,
    traced: Callable[[], RunResult],
    json_path: Path | None = None,
    trace_path: Path | None = None,
    folder: Path | None = None,
    top: int = 15,
) -> None:
    """Write the files that are asked for: all that can be written, even when one cannot.

    Args:
        traced: gives the run whose trace to write; called only when one is wanted.
        json_path, trace_path: single files, in folders that exist.
        folder: made if need be; gets report.txt, run.json and trace.json.
        top: ops in the report's table.

    Raises:
        WriteError: the first file that could not be written.
    """
    writers: dict[str, Write] = {
        "report.txt": lambda path: write_text(path, report_text(result, top=top)),
        "run.json": lambda path: write_text(path, json_text(result)),
        "trace.json": lambda path: write_trace(traced(), path),
    }
    failures = []
    for path, kind in _wanted(json_path, trace_path, folder):
        try:
            if folder is not None and path.parent == folder:
                folder.mkdir(parents=True, exist_ok=True)
            writers[kind](path)
        except WriteError as error:
            failures.append(error)
        except OSError as error:
            failures.append(WriteError(path, error))
    if failures:
        raise failures[0]


def json_text(result: RunResult) -> str:
    """`result_json` as text."""
    return json.dumps(result_json(result), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _wanted(
    json_path: Path | None, trace_path: Path | None, folder: Path | None
) -> Iterator[tuple[Path, str]]:
    if json_path:
        yield json_path, "run.json"
    if trace_path:
        yield trace_path, "trace.json"
    if folder:
        for name in ("report.txt", "run.json", "trace.json"):
            yield folder / name, name


def write_text(path: Path, text: str) -> None:
    """Write one file.

    Raises:
        WriteError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(path, error) from None


def write_json(path: Path, data: object) -> None:
    """Write plain data as JSON.

    Raises:
        WriteError: it cannot be written.
    """
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
