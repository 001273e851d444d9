"""Readers of recorded profiles, told apart by their header.

* op_summary_*.csv of msprof, 910A and 910B column sets;
* kernel_details.csv of the Ascend PyTorch Profiler and MindSpore;
* tables of published operator times (see `tables`).

A folder is searched for them; several ranks become several nets.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from npusim.errors import ModelError
from npusim.frontends.recorded.cells import ABSENT, Line
from npusim.frontends.recorded.op import RecordedOp, RecordedTensor
from npusim.frontends.recorded.tables import COMPACT, FIGURES, compact_op, figure_op

#: Columns under their several names, newest first.
_ALIASES: dict[str, tuple[str, ...]] = {
    "name": ("Op Name", "Name"),
    "type": ("OP Type", "Type"),
    "core": ("Task Type", "Accelerator Core"),
    "start": ("Task Start Time(us)", "Start Time(us)"),
    "duration": ("Task Duration(us)", "Duration(us)"),
    "blocks": ("Block Num", "Block Dim"),
}
_SHAPES = ("Input Shapes", "Input Data Types", "Input Formats")
_OUT_SHAPES = ("Output Shapes", "Output Data Types", "Output Formats")
_COMMUNICATION = ("HCCL", "COMMUNICATION")
_OUTPUT_FOLDERS = ("ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output")


def read_profile(path: Path) -> list[RecordedOp]:
    """All recorded operators of a file or a folder, in the order they ran where it is known.

    Raises:
        ModelError: nothing readable there, or a row that is not what its header promises.
    """
    if not path.is_dir():
        return _read_file(path, path.stem)
    found = _profiles_below(path)
    if not found:
        raise ModelError(
            f"{path} holds no recorded profile",
            "op_summary_*.csv, kernel_details.csv or a table of operator times below it",
            "export one with `msprof --export=on`, or name a CSV file",
        )
    return [op for p in found for op in _read_file(p, _net(p, path))]


def _profiles_below(folder: Path) -> list[Path]:
    """The profiles in a folder; op_summary files only where no kernel_details tells the same."""
    files = sorted(folder.rglob("*.csv"))
    details = [p for p in files if p.name == "kernel_details.csv"]
    summaries = [p for p in files if p.name.startswith("op_summary")]
    tables = [p for p in files if p not in details and p not in summaries and _is_table(p)]
    return (details or summaries) + tables


def _is_table(path: Path) -> bool:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = set(next(csv.reader(file), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False  # a CSV file of something else
    return header >= COMPACT or header >= FIGURES


def _net(path: Path, folder: Path) -> str:
    """The rank's folder, as seen from the one that was named; else the file's name."""
    parts = [p for p in path.relative_to(folder).parts[:-1] if p not in _OUTPUT_FOLDERS]
    return "/".join(parts) or path.stem


def _read_file(path: Path, net: str) -> list[RecordedOp]:
    header, lines = _lines(path)
    if set(header) >= COMPACT:
        return [compact_op(line) for line in lines]
    if set(header) >= FIGURES:
        return [op for line in lines if (op := figure_op(line))]
    if _column(header, "type") and _column(header, "duration"):
        ops = [op for line in lines if (op := _profiler_op(line, header, net))]
        if all(op.start_us is not None for op in ops):
            ops.sort(key=lambda op: op.start_us or 0.0)
        return ops
    raise ModelError(
        f"{path} is not a profile that npusim knows: columns {', '.join(header[:6]) or 'none'}",
        "op_summary_*.csv, kernel_details.csv, or a table of operator times",
        "export the profile with msprof or the PyTorch profiler",
    )


def _lines(path: Path) -> tuple[list[str], list[Line]]:
    """Header and rows of a CSV file.

    Raises:
        ModelError: it cannot be read, or a row has more or fewer cells than the header.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            header = list(reader.fieldnames or [])
            lines = [Line(path, reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise ModelError(
            f"cannot read {path}: {why}", "a CSV file of a profiler", "check the file"
        ) from None
    for line in lines:
        if None in line.row or None in line.row.values():  # csv's marks of a ragged row
            raise line.error("more or fewer cells than the header", f"{len(header)} cells")
    return header, lines


def _column(header: Sequence[str], key: str) -> str:
    return next((c for c in _ALIASES[key] if c in header), "")


def _profiler_op(line: Line, header: Sequence[str], net: str) -> RecordedOp | None:
    """A row of op_summary or kernel_details; None for what is no operator.

    Such are communication, and tasks without a type (events, copies).
    """
    core = line.text(_column(header, "core")).upper()
    op_type = line.text(_column(header, "type"))
    if core in _COMMUNICATION or op_type in ("", "N/A"):
        return None
    duration, start = _column(header, "duration"), _column(header, "start")
    if not line.text(duration):
        raise line.error(f"{duration} is empty", "the op's time in µs")
    return RecordedOp(
        net=net,
        name=line.text(_column(header, "name")) or f"row {line.number}",
        op_type=op_type,
        core_type=core,
        block_dim=int(line.number_of(_column(header, "blocks"))),
        inputs=_profiler_tensors(line, _SHAPES),
        outputs=_profiler_tensors(line, _OUT_SHAPES),
        count=1,
        measured_us=line.number_of(duration),
        start_us=line.number_of(start) if line.text(start) else None,
    )


def _profiler_tensors(line: Line, columns: tuple[str, str, str]) -> tuple[RecordedTensor, ...]:
    """Operands; the shapes stand in quotes of their own, and a scalar's is empty."""
    shapes, dtypes, formats = map(line.text, columns)
    if shapes in ("", "N/A"):
        return ()
    kinds, layouts = dtypes.split(";"), formats.split(";")
    found = []
    for i, shape in enumerate(shapes.strip('"').split(";")):
        dtype = kinds[i].strip() if i < len(kinds) else ""
        if dtype.removeprefix("DT_") in ABSENT:
            continue  # an optional input that was not given
        found.append(line.tensor(layouts[i] if i < len(layouts) else "ND", dtype, shape))
    return tuple(found)
