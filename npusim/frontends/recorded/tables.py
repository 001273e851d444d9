"""Published tables of operator times, one row a figure.

* the compact table: `net,op_type,block_dim,inputs,outputs,count,median_us`, operands written
  `FORMAT:dtype:1,2,3;…`; optional columns `chip`, `source`, `attrs`;
* the figure table: `op,shape,dtype,device,duration_us,…`, shapes written `a;b -> c`, with
  the element types of the inputs only; `note` has formats as `fmt=a;b` and attributes as
  `attrs {"name": value}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import prod
from typing import Any

from npusim.frontends.recorded.cells import ABSENT, Line, dtype_of
from npusim.frontends.recorded.gemm import gemm_op
from npusim.frontends.recorded.op import RecordedOp, RecordedTensor
from npusim.ir import DType

COMPACT = {"op_type", "block_dim", "inputs", "outputs", "median_us"}
FIGURES = {"op", "shape", "dtype", "device", "duration_us"}

_FMT = re.compile(r"\bfmt[= ]([A-Z0-9_;/]+)")
_BY_SIZE = {1: "uint8", 2: "float16", 4: "float32", 8: "int64"}  #: an output's type, by bytes
_ATTR = re.compile(r'"(\w+)": (?:\[([-0-9, ]*)\]|"([^"]*)")')
_CORE = re.compile(r"\bcore=(\w+)")
_ATTRS = re.compile(r"\battrs (\{.*\})")
_C0 = (8, 16)  #: channels of a block, in fp32 on some chips and in fp16


def compact_op(line: Line) -> RecordedOp:
    """A row of the compact table."""
    return RecordedOp(
        net=line.text("net") or line.path.stem,
        name=f"{line.text('op_type')}.{line.number}",
        op_type=line.text("op_type"),
        core_type="AI_CORE",
        block_dim=int(line.number_of("block_dim")),
        inputs=_compact_tensors(line, "inputs"),
        outputs=_compact_tensors(line, "outputs"),
        count=int(line.number_of("count")) if line.text("count") else 1,
        measured_us=line.number_of("median_us"),
        device=line.text("chip"),
        core_time_only=line.text("time") == "core",
        source=line.text("source"),
        attrs=_attrs(line, f"attrs {line.text('attrs')}"),
    )


def _compact_tensors(line: Line, column: str) -> tuple[RecordedTensor, ...]:
    found = []
    for part in filter(None, line.text(column).split(";")):
        layout, dtype, shape = (*part.split(":"), "", "")[:3]
        found.append(line.tensor(layout, dtype, shape))
    return tuple(found)


def figure_op(line: Line) -> RecordedOp | None:
    """A row of the figure table; None where the figure is not of one operator's launch.

    Such are collectives, whole algorithms and host costs: their shapes have no `->`, as those of
    plain products have none.
    """
    shapes, arrow, results = line.text("shape").partition("->")
    if not arrow:
        return gemm_op(line)
    note = line.text("note")
    formats = match[1].split(";") if (match := _FMT.search(note)) else []
    dtypes = line.text("dtype").split(";")
    inputs = tuple(
        line.tensor(formats[i] if i < len(formats) else "ND", dtypes[i], shape)
        for i, shape in enumerate(_shapes(shapes))
        if i < len(dtypes) and dtypes[i].removeprefix("DT_") not in ABSENT
    )
    return RecordedOp(
        net=line.text("device"),
        name=f"{line.text('op')}.{line.number}",
        op_type=line.text("op"),
        core_type=match[1] if (match := _CORE.search(note)) else "AI_CORE",
        block_dim=int(line.number_of("block_dim")),
        inputs=inputs,
        outputs=_outputs(line, inputs, _shapes(results)),
        count=1,
        measured_us=line.number_of("duration_us"),
        device=line.text("device"),
        core_time_only="aicore_time" in note,
        source=line.text("source"),
        attrs=_attrs(line, note),
    )


def _attrs(line: Line, note: str) -> tuple[tuple[str, Any], ...]:
    """Attributes that a note holds as a JSON object; lists become tuples.

    Of an object that the table cut off, what is whole.

    Raises:
        ModelError: it is no JSON object.
    """
    match = _ATTRS.search(note)
    if match is None:
        return _whole_attrs(note.partition("attrs {")[2])
    try:
        found = json.loads(match[1])
    except json.JSONDecodeError:
        raise line.error(f"attrs are {match[1]!r}", "a JSON object") from None
    pairs = ((k, tuple(v) if isinstance(v, list) else v) for k, v in found.items())
    return tuple(sorted(pairs))


def _whole_attrs(text: str) -> tuple[tuple[str, Any], ...]:
    """Attributes as `"ksize": [1, 3, 3, 1], "padding": "SAME", …`: lists of numbers, and words."""
    found: list[tuple[str, tuple[int, ...] | str]] = []
    for name, numbers, word in _ATTR.findall(text):
        values = tuple(int(n) for n in numbers.split(",") if n.strip())
        found.append((name, values or word))
    return tuple(sorted(found))


def _shapes(text: str) -> list[str]:
    text = text.strip()
    return [] if text == "N/A" else text.split(";")


def _outputs(
    line: Line, inputs: Sequence[RecordedTensor], shapes: Sequence[str]
) -> tuple[RecordedTensor, ...]:
    """Outputs: the table has their shapes only.

    Their element type is the first input's, unless the nominal rate ("GB/s", all operand bytes
    by the duration) says that they are larger or smaller, as a Cast's are.
    """
    dtype = inputs[0].dtype if inputs else "float32"
    layout = inputs[0].format if inputs else "ND"
    found = [line.tensor(layout, dtype, shape) for shape in shapes]
    known = {d.value for d in DType}
    total = line.number_of("GB/s") * line.number_of("duration_us") * 1e3
    if len(found) == 1 and inputs and total and all(t.dtype in known for t in inputs):
        left = total - sum(t.size * DType(t.dtype).size for t in inputs)
        size = round(left / found[0].size)
        if size in _BY_SIZE and size != DType(dtype).size:
            dtype = _BY_SIZE[size]
    return tuple(
        RecordedTensor(_layout(t.shape, layout, inputs), dtype_of(dtype), t.shape) for t in found
    )


def _layout(shape: tuple[int, ...], layout: str, inputs: Sequence[RecordedTensor]) -> str:
    """The first input's format where the output can have it, else the one of its shape."""
    if inputs and len(shape) == len(inputs[0].shape):
        return layout
    if len(shape) == 5 and shape[-1] in _C0:
        return "NC1HWC0"
    grown = inputs and prod(shape) >= inputs[0].size
    if len(shape) == 4 and shape[-2] == 16 and shape[-1] in _C0 and grown:
        return "FRACTAL_Z" if len(inputs[0].shape) == 4 else "FRACTAL_NZ"
    return "ND"
