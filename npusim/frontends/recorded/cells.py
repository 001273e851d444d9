"""Cells of a profiler's CSV: numbers and operands, with the file and line in every error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from npusim.errors import ModelError
from npusim.frontends.recorded.op import RecordedTensor

#: Profilers' names of element types → numpy's.
DTYPES = {
    "FLOAT": "float32", "FLOAT32": "float32", "FLOAT16": "float16", "BF16": "bfloat16",
    "BFLOAT16": "bfloat16", "INT8": "int8", "UINT8": "uint8", "INT16": "int16",
    "UINT16": "uint16", "INT32": "int32", "UINT32": "uint32", "INT64": "int64",
    "UINT64": "uint64", "BOOL": "bool", "DOUBLE": "float64", "FP16": "float16",
    "FP32": "float32", "UINT": "uint8", "BEGIN": "bool",
}  # fmt: skip
#: Profilers' other names of formats.
FORMATS = {
    "FRACZ": "FRACTAL_Z", "NCHW": "ND", "NHWC": "ND", "NCL": "ND", "DEFAULTFORMAT": "ND",
}  # fmt: skip
ABSENT = ("", "UNDEFINED", "NULL")  #: element type or format of an optional operand not given


@dataclass(frozen=True)
class Line:
    """One row of a CSV file."""

    path: Path
    number: int
    row: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell without the blanks and TABs around it; "" when there is no such column."""
        return (self.row.get(column) or "").strip()

    def number_of(self, column: str) -> float:
        """A cell as a number of at least 0; an empty one and N/A are 0.

        Raises:
            ModelError: it is no such number.
        """
        text = self.text(column)
        if text in ("", "N/A"):
            return 0.0
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not isfinite(value) or value < 0:
            raise self.error(f"{column} is {text!r}", "a number of at least 0")
        return value

    def tensor(self, layout: str, dtype: str, shape: str) -> RecordedTensor:
        """An operand from the profiler's words; an empty shape is a scalar.

        Raises:
            ModelError: the shape is not a list of whole numbers.
        """
        dims = shape.replace(" ", "").split(",") if shape.strip() else []
        if not all(d.isdecimal() for d in dims):
            raise self.error(f"a shape is {shape!r}", "whole numbers, as in 32,3,224,224")
        return RecordedTensor(format_of(layout), dtype_of(dtype), tuple(map(int, dims)))

    def error(self, what: str, allowed: str) -> ModelError:
        """The error of a cell."""
        return ModelError(
            f"{self.path}, line {self.number}: {what}", allowed, "repair or leave out the line"
        )


def dtype_of(text: str) -> str:
    """DT_BF16 → "bfloat16"; a type that npusim does not know keeps its name."""
    name = text.strip().upper().removeprefix("DT_")
    return DTYPES.get(name, name)


def format_of(text: str) -> str:
    """FracZ → "FRACTAL_Z"; no format is ND."""
    name = text.strip().upper().removeprefix("FORMAT_")
    return FORMATS.get(name, name or "ND")
