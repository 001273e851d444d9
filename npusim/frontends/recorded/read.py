"""Readers of recorded profiles, told apart by their header.

* op_summary_*.csv of msprof, 910A and 910B column sets;
* kernel_details.csv of the Ascend PyTorch Profiler and MindSpore;
* the compact table of per-operator times (`net,op_type,block_dim,inputs,outputs,count,median_us`).

A folder is searched for them; several ranks become several nets.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from npusim.errors import ModelError
from npusim.frontends.recorded.op import RecordedOp, RecordedTensor

Row = Mapping[str, str]

#: Profilers' names of element types → numpy's.
DTYPES = {
    "FLOAT": "float32", "FLOAT32": "float32", "FLOAT16": "float16", "BF16": "bfloat16",
    "BFLOAT16": "bfloat16", "INT8": "int8", "UINT8": "uint8", "INT16": "int16",
    "UINT16": "uint16", "INT32": "int32", "UINT32": "uint32", "INT64": "int64",
    "UINT64": "uint64", "BOOL": "bool", "DOUBLE": "float64", "FP16": "float16",
    "FP32": "float32", "UINT": "uint8", "BEGIN": "bool",
}
#: Profilers' other names of formats.
FORMATS = {"FRACZ": "FRACTAL_Z", "NCHW": "ND", "NHWC": "ND", "DEFAULTFORMAT": "ND"}

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


def read_profile(path: Path) -> list[RecordedOp]:
    """All recorded operators of a file or a folder.

    Raises:
        ModelError: nothing readable there, or a row that is not what its header promises.
    """
    if path.is_dir():
        found = sorted(
            p for p in path.rglob("*.csv")
            if p.name.startswith("op_summary") or p.name == "kernel_details.csv"
        )
        if not found:
            raise ModelError(
                f"{path} holds no recorded profile",
                "op_summary_*.csv or kernel_details.csv somewhere below it",
                "export one with `msprof --export=on`, or name a CSV file",
            )
        many = len(found) > 1
        return [op for p in found for op in _read_file(p, str(p.parent) if many else p.stem)]
    return _read_file(path, path.stem)


def _read_file(path: Path, net: str) -> list[RecordedOp]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
            header = list(rows[0]) if rows else []
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise ModelError(
            f"cannot read {path}: {e}", "a CSV file of a profiler", "check the path"
        ) from None
    if {"op_type", "block_dim", "inputs", "outputs", "median_us"} <= set(header):
        return [_compact(r, path, i) for i, r in enumerate(rows, 2)]
    if _column(header, "type") and _column(header, "duration"):
        return [
            op for i, r in enumerate(rows, 2) if (op := _profiler(r, header, net, path, i))
        ]
    raise ModelError(
        f"{path} is not a profile that npusim knows: columns {', '.join(header[:6]) or 'none'}",
        "op_summary_*.csv, kernel_details.csv, or the compact table of operator times",
        "export the profile with msprof or the PyTorch profiler",
    )


def _column(header: Sequence[str], key: str) -> str:
    return next((c for c in _ALIASES[key] if c in header), "")


def _number(text: str, path: Path, line: int, column: str) -> float:
    try:
        return float(text.strip() or 0)
    except ValueError:
        raise ModelError(
            f"{path}, line {line}: {column} is {text!r}", "a number", "repair the file"
        ) from None


def _compact(row: Row, path: Path, line: int) -> RecordedOp:
    return RecordedOp(
        net=row.get("net", path.stem),
        name=f"{row['op_type']}.{line}",
        op_type=row["op_type"],
        core_type="AI_CORE",
        block_dim=int(_number(row["block_dim"], path, line, "block_dim")),
        inputs=_compact_tensors(row["inputs"]),
        outputs=_compact_tensors(row["outputs"]),
        count=int(_number(row.get("count") or "1", path, line, "count")),
        measured_us=_number(row["median_us"], path, line, "median_us"),
    )


def _compact_tensors(text: str) -> tuple[RecordedTensor, ...]:
    """`FORMAT:dtype:1,2,3;…`; an empty shape is a scalar."""
    found = []
    for part in filter(None, text.split(";")):
        layout, dtype, shape = (*part.split(":"), "", "")[:3]
        found.append(_tensor(layout, dtype, shape))
    return tuple(found)


def _tensor(layout: str, dtype: str, shape: str) -> RecordedTensor:
    layout, dtype = layout.strip().upper(), dtype.strip().upper().removeprefix("DT_")
    dims = tuple(int(d) for d in shape.replace(" ", "").split(",") if d)
    return RecordedTensor(FORMATS.get(layout, layout or "ND"), DTYPES.get(dtype, dtype), dims)


def _profiler(
    row: Row, header: Sequence[str], net: str, path: Path, line: int
) -> RecordedOp | None:
    """A row of op_summary or kernel_details; None for what is no operator (communication)."""
    core = (row.get(_column(header, "core")) or "").strip()
    if core.upper() in ("HCCL", "COMMUNICATION"):
        return None
    blocks, start = _column(header, "blocks"), _column(header, "start")
    text = (row.get(blocks) or "0").strip() if blocks else "0"
    return RecordedOp(
        net=net,
        name=row.get(_column(header, "name")) or f"row {line}",
        op_type=row[_column(header, "type")],
        core_type=core,
        block_dim=0 if text == "N/A" else int(_number(text, path, line, blocks)),
        inputs=_profiler_tensors(row, _SHAPES),
        outputs=_profiler_tensors(row, _OUT_SHAPES),
        count=1,
        measured_us=_number(row[_column(header, "duration")], path, line, "duration"),
        start_us=_number(row[start], path, line, start) if start and row.get(start) else None,
    )


def _profiler_tensors(row: Row, columns: tuple[str, str, str]) -> tuple[RecordedTensor, ...]:
    shapes, dtypes, formats = ((row.get(c) or "").strip() for c in columns)
    if not shapes or shapes == "N/A":
        return ()
    parts = shapes.strip('"').split(";")
    kinds, layouts = dtypes.split(";"), formats.split(";")
    found = []
    for i, shape in enumerate(parts):
        dtype = kinds[i] if i < len(kinds) else ""
        if dtype in ("", "DT_UNDEFINED", "UNDEFINED"):
            continue  # an absent optional input
        found.append(_tensor(layouts[i] if i < len(layouts) else "ND", dtype, shape))
    return tuple(found)
