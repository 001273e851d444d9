"""What `npusim validate` prints, and the accuracy page that it writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.chip import chip_rows, load_chip
from npusim.profiling.tables import markdown, table
from npusim.profiling.text import duration, percent, signed
from npusim.timeline.replayed import (
    SMALL_US,
    Accuracy,
    ReplayedOp,
    TimedModel,
    accuracy,
    grouped,
)

Chips = Mapping[str, Sequence[ReplayedOp]]

_FAMILIES = (
    ("attention", re.compile(r"FlashAttention|FusionAttention|ScaledMaskedSoftmax")),
    ("convolution", re.compile(r"Conv")),
    ("gemm", re.compile(r"^GEMM$")),
    ("matmul", re.compile(r"MatMul|FullyConnection", re.I)),
    ("pooling", re.compile(r"Pool")),
    ("normalisation", re.compile(r"BN|(?<!Lp)Norm|Softmax")),
    ("optimiser", re.compile(r"Apply|Momentum|Adam|Lamb|SquareSum")),
    ("reduction", re.compile(r"Reduce|Sum|LpNorm|L2Loss|ArgMax|BiasAddGrad")),
    (
        "copies, layout",
        re.compile(
            r"TransData|Transpose|TensorMove|Concat|Slice|Split|Pad|BroadcastTo|AsStrided|Gather"
            r"|MemSet|AtomicAddrClean|Pack|Tile|Fill|Like$"
        ),
    ),
)
#: Measurements that contradict others of the same part: reported, counted in no total.
_SET_APART = "matmul of BERT"

ASSUMPTIONS = (
    ("clock", "one fixed clock per chip; no throttling, no power limit"),
    ("L2", "random replacement in the mean, by address range; no sets, no hash"),
    ("HBM", "one shared bandwidth and latency; no banks, rows, refresh or read/write turn-around"),
    ("instruction cache", "always hits: the first launch of a kernel costs no more than others"),
    ("tiling", "the recorded number of blocks is kept; the tiling inside a block is npusim's own"),
    ("addresses", "profiles keep none: tensors of one type and shape are taken as one tensor"),
    ("attributes", "profiles keep none: strides and pads are read off the shapes"),
    ("waves", "more blocks than cores run in whole waves, one after the other"),
    ("neighbours", "an op runs alone: no other stream, no collective, no host traffic"),
    ("data", "times do not depend on values (sparsity, repeated indices in scatters)"),
)
_TOTAL = "all"


def family(op: ReplayedOp) -> str:
    """The operator family that a row counts in."""
    name = next((f for f, pattern in _FAMILIES if pattern.search(op.op_type)), "elementwise")
    apart = name == "matmul" and op.net.startswith("bert")
    return _SET_APART if apart else name


def print_validation(
    chips: Chips,
    console: Console,
    *,
    left_out: int = 0,
    models: Sequence[TimedModel] = (),
    models_left_out: int = 0,
) -> None:
    """Print the errors per chip and family, those of the plain roofline beside them."""
    for chip, ops in chips.items():
        console.print(_family_table(chip, ops), "")
        if len({op.net for op in ops}) > 1:
            console.print(_net_table(ops), "")
    if models:
        console.print(_models_table(models), "")
    if left_out:
        console.print(Text(f"{left_out} rows left out: their device is no shipped chip exactly"))
    if models_left_out:
        console.print(Text(f"{models_left_out} whole-model figures left out: {_NO_ANCHOR}"))
    if not chips:
        return
    console.print(
        Text(
            f"median, p90: of |predicted / measured - 1| over rows of at least {SMALL_US:g} µs\n"
            "error: Σ|predicted - measured| / Σ measured; bias: geometric mean; sum: of all rows\n"
            "roofline: the larger of FLOPs / peak and bytes / bandwidth, plus launch"
        )
    )


#: Why a whole-model figure is not held against npusim.
_NO_ANCHOR = "other models or precisions, training, or no shipped chip exactly"
_HOST_NOTE = (
    "measured throughput includes the host and another compiler; simulated is the device alone; "
    "small_channel: on, as in the published ATC command (--enable_small_channel=1)"
)
_MODEL_COLUMNS = ("model", "chip", "batch", "measured /s", "npusim /s", "ratio")


def _model_cells(m: TimedModel) -> list[str]:
    numbers = (f"{m.measured_per_s:.4g}", f"{m.simulated_per_s:.4g}", f"{m.ratio:.2f}")
    return [m.model, m.chip, str(m.batch), *numbers]


def _by_size(models: Sequence[TimedModel]) -> list[TimedModel]:
    return sorted(models, key=lambda m: (m.chip, m.model, m.batch))


def _models_table(models: Sequence[TimedModel]) -> Table:
    columns = (*_MODEL_COLUMNS[:2], *(f">{c}" for c in _MODEL_COLUMNS[2:]))
    found = table("Whole models, fp16", *columns)
    for m in _by_size(models):
        found.add_row(*map(Text, _model_cells(m)))
    found.caption = _HOST_NOTE
    return found


def _counted(ops: Sequence[ReplayedOp]) -> list[ReplayedOp]:
    return [op for op in ops if family(op) != _SET_APART]


def _groups(ops: Sequence[ReplayedOp]) -> Iterator[tuple[str, Accuracy, Accuracy]]:
    """Family, npusim's accuracy, the roofline's; the total last."""
    for name, rows in {**grouped(ops, family), _TOTAL: _counted(ops)}.items():
        yield name, accuracy(rows), accuracy(rows, lambda op: op.roofline_us)


def _size(value: float | None) -> str:
    """The size of an error: as `signed`, without the sign."""
    return "-" if value is None else signed(abs(value))[1:]


def _cells(name: str, a: Accuracy, line: Accuracy) -> list[str]:
    if not a.covered:
        return [name, str(a.rows), percent(0.0), *["-"] * 8]
    return [
        name, str(a.rows), percent(a.coverage), _size(a.median_ape), _size(a.p90_ape),
        _size(a.weighted), signed(a.bias), signed(a.sum_error),
        _size(line.median_ape), _size(line.weighted), signed(line.sum_error),
    ]  # fmt: skip


_COLUMNS = (
    "family", "rows", "cover", "median", "p90", "error", "bias", "sum",
    "roofline: median", "error", "sum",
)  # fmt: skip


def _family_table(chip: str, ops: Sequence[ReplayedOp]) -> Table:
    numbers = [f">{c}".replace("roofline: median", "│ median") for c in _COLUMNS[1:]]
    found = table(f"{chip} (right of │: plain roofline)", _COLUMNS[0], *numbers)
    for group in _groups(ops):
        found.add_row(*map(Text, _cells(*group)))
    return found


def _net_table(ops: Sequence[ReplayedOp]) -> Table:
    found = table("By net", "net", ">rows", ">cover", ">measured", ">error", ">bias", ">sum")
    for net, rows in grouped(_counted(ops), lambda op: op.net).items():
        a = accuracy(rows)
        cells = (
            net, str(a.rows), percent(a.coverage), duration(a.measured), percent(a.weighted),
            signed(a.bias), signed(a.sum_error),
        )  # fmt: skip
        found.add_row(*map(Text, cells))
    return found


def validation_json(
    chips: Chips, models: Sequence[TimedModel] = (), *, left_out: int = 0, models_left_out: int = 0
) -> dict[str, object]:
    """Everything as plain data: per chip the errors by family and the rows; the whole models."""
    return {
        "chips": {
            chip: {
                "families": {
                    name: {"npusim": asdict(a), "roofline": asdict(line)}
                    for name, a, line in _groups(ops)
                },
                "rows": [{**asdict(op), "family": family(op)} for op in ops],
            }
            for chip, ops in chips.items()
        },
        "left_out": left_out,
        "models": [{**asdict(m), "ratio": m.ratio} for m in _by_size(models)],
        "models_left_out": models_left_out,
    }


# -- the accuracy page ---------------------------------------------------------------------


def accuracy_page(
    chips: Chips,
    models: Sequence[TimedModel] = (),
    kernel_constants: Sequence[tuple[str, str, str]] = (),
) -> str:
    """The accuracy page, as Markdown: errors, assumptions, and every figure with its source.

    Args:
        kernel_constants: (name, value, what fixes it) of the kernels.
    """
    parts = [
        "# Accuracy\n",
        "Written by `npusim validate -o docs/accuracy.md`; do not edit.\n",
        "Each figure below was measured on a real chip by somebody else and published; npusim "
        "replays the operator on its model of that chip. The plain roofline (the larger of "
        "FLOPs / peak and operand bytes / HBM bandwidth, plus the launch) stands beside it.\n",
        f"Median and p90 are of |predicted / measured − 1| over rows of at least {SMALL_US:g} µs; "
        "error is Σ|predicted − measured| / Σ measured; bias is the geometric mean of predicted / "
        "measured, less 1; sum is the error of all rows together. Rows that npusim cannot replay "
        "count in the coverage only.\n",
        "BERT's matrix products of the 30-core profile contradict the other nets of the same part "
        "(a third of their rate on the same sizes): they are listed, and counted in no total.\n",
    ]
    for chip, ops in chips.items():
        rows = [_cells(*group) for group in _groups(ops)]
        parts += [f"## {chip}\n", markdown(_COLUMNS, rows)]
    if models:
        rows = [[*_model_cells(m), m.source] for m in _by_size(models)]
        parts += ["## Whole models, fp16\n", f"In samples/s; {_HOST_NOTE}.\n"]
        parts.append(markdown((*_MODEL_COLUMNS, "source"), rows))
    parts += ["## What the model ignores\n", markdown(("what", "assumption"), ASSUMPTIONS)]
    parts += ["## Constants that come from measurements\n"]
    parts += ["All other numbers of a chip are documented or assumed: "
              "`npusim chip show NAME --sources`.\n"]  # fmt: skip
    for chip in chips:
        parts.append(f"### Constants of {chip}\n")
        parts.append(markdown(("key", "value", "source"), _fitted(chip)))
    if kernel_constants:
        parts.append("### Constants of kernels\n")
        parts.append("Times within a kernel that no chip file holds, as the source has them.\n")
        parts.append(
            markdown(("constant", "value", "what it is, and what fixes it"), kernel_constants)
        )
    parts += ["## The figures\n", "Times in µs of one launch.\n"]
    heads = ("op type", "shapes", "blocks", "measured", "npusim", "ratio", "roofline", "bound",
               "source")  # fmt: skip
    for chip, ops in chips.items():
        parts += [f"### {chip}\n", markdown(heads, map(_figure, ops))]
    return "\n".join(parts)


def _fitted(chip: str) -> Iterator[list[str]]:
    """A chip's constants that were measured or inferred: key, value, what fixes it."""
    for row in chip_rows(load_chip(chip)):
        if row.grade in ("measured", "inferred"):
            yield [row.key, row.value, row.source]


def _figure(op: ReplayedOp) -> list[str]:
    found = op.predicted_us is not None
    return [
        op.op_type, op.shapes, str(op.block_dim or "-"), f"{op.measured_us:.4g}",
        f"{op.predicted_us:.4g}" if op.predicted_us is not None else f"- ({op.reason})",
        f"{op.predicted / op.measured:.2f}" if found and op.measured else "-",
        f"{op.roofline_us:.4g}", op.bound or "-", op.source,
    ]  # fmt: skip
