"""What `npusim ablate` prints and writes: each step of the compiler with what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.profiling.tables import claims_table, lines, markdown, table
from npusim.profiling.text import duration, size
from npusim.timeline.ablated import Ablation, AblationRow, Claim, PrecisionGain

_COLUMNS = (
    "step", "ops", "tasks", "memory", "if reused", "HBM", "time", "gain", "total", "rel. err",
)  # fmt: skip
_SUFFIXES = ("FusionPass", "Pass")  #: of CANN's pass names, left out in the table
_TOO_LARGE = "!"


def print_ablation(a: Ablation, console: Console) -> None:
    """Print the rows. Made for 100 columns."""
    lines(
        console,
        [
            ("model", f"{a.model}, batch {a.batch}, {a.nodes} operators"),
            ("chip", a.chip),
            ("check", a.reference),
            *(("note", text) for text in a.notes),
        ],
    )
    console.print(_table(a))


def _table(a: Ablation) -> Table:
    found = table("Step by step", _COLUMNS[0], *(f">{c}" for c in _COLUMNS[1:]))
    found.columns[0].no_wrap = True
    for cells in _rows(a, short=True):
        found.add_row(*map(Text, cells))
    found.caption = "\n".join(_legend(a))
    return found


def _legend(a: Ablation) -> list[str]:
    text = [
        "memory: weights and activations at the peak; if reused: where tensors share memory",
        "HBM: bytes moved · gain: speed over the row before · total: over the first that runs",
    ]
    if any(_too_large(a, r) for r in a.rows):
        text.append(f"{_TOO_LARGE} more than the chip's {size(a.hbm_size)}: timed as if it fitted")
    text += [f"{r.step}: {r.reason}" for r in a.rows if r.reason]
    if a.idle:
        names = ", ".join(_short(r.step).removeprefix("+ ") for r in a.idle)
        text.append(f"does nothing here: {names}")
    return text


def _short(step: str) -> str:
    return next((step.removesuffix(s) for s in _SUFFIXES if step.endswith(s)), step)


def _too_large(a: Ablation, r: AblationRow) -> bool:
    return r.memory_bytes > a.hbm_size


def _rows(a: Ablation, *, short: bool) -> Iterator[list[str]]:
    """The cells of every row that changes something; pass names as CANN has them, or `short`."""
    first = before = next(iter(a.ladder), None)
    for r in a.telling:
        step = _short(r.step) if short else r.step
        if r.reason or first is None or before is None:
            yield [step, *["-"] * (len(_COLUMNS) - 1)]
            continue
        gain = "" if r is first or r.twin else times(before.us, r.us)
        yield [
            step, str(r.operators), str(r.kernels),
            f"{_TOO_LARGE if _too_large(a, r) else ''}{size(r.memory_bytes)}",
            size(r.memory_reused), size(r.hbm_bytes), duration(r.us), gain,
            times(first.us, r.us), (r.check or "·") + (" ✗" if r.failed else ""),
        ]  # fmt: skip
        if not r.twin:
            before = r


def times(slow: float, fast: float) -> str:
    """How many times faster: "1.31×", "53.4×"; "·" where nothing changed."""
    if slow == fast:
        return "·"
    ratio = slow / fast
    digits = 3 if abs(ratio - 1) < 0.01 else 2 if ratio < 10 else 1
    return f"{ratio:.{digits}f}×"


def ablation_json(a: Ablation, claims: Sequence[Claim] = ()) -> dict[str, object]:
    """Everything as plain data."""
    data: dict[str, object] = asdict(a)
    data["rows"] = [
        {**asdict(r), "memory_bytes": r.memory_bytes, "memory_reused": r.memory_reused}
        for r in a.rows
    ]
    return {**data, "claims": [asdict(c) for c in claims]}


def ablation_page(
    found: Sequence[tuple[Ablation, Sequence[Claim]]],
    command: str,
    order: str,
    gains: Sequence[PrecisionGain] = (),
    why: str = "",
) -> str:
    """The rows of several models, with published claims beside them, as Markdown.

    Args:
        command: that writes the page; order: why the steps are in this order.
        gains: nets in two precisions, on one chip; why: what bounds them.
    """
    parts = [
        "# What each step of the compiler gives\n",
        f"Written by `{command}`; do not edit.\n",
        f"{order}\n",
        "All times are simulated, of the device alone. Claims are those of two introductory "
        "articles on the Ascend stack, which say nothing of how they measured.\n",
    ]
    for a, claims in found:
        parts.append(f"## {a.model}, batch {a.batch}, on {a.chip}\n")
        parts.append(f"{a.nodes} operators in the model; check: {a.reference}.\n")
        parts.append(markdown(_COLUMNS, list(_rows(a, short=False))))
        parts.append("<br>".join(_legend(a)) + "\n")
        parts += [f"Note: {text}.\n" for text in a.notes]
        if claims:
            parts.append("### Published claims\n")
            parts += claims_table(claims)
    if gains:
        parts.append(f"## {gains[0].precision} beside fp32, on {gains[0].chip}\n")
        parts.append(f"{why}\n")
        parts.append(_gain_table(gains))
    return "\n".join(parts)


def _gain_table(gains: Sequence[PrecisionGain]) -> str:
    most = gains[0].most
    columns = ["net", "batch", "fp32", gains[0].precision, "gain", "same kernels: at most", "tasks"]
    columns += [f"{what} (≤ {limit:.3g}×)" for what, limit in most.items()]
    rows = [
        [
            g.model, str(g.batch), duration(g.slow_us), duration(g.fast_us), f"{g.gain:.2f}×",
            f"{g.ceiling:.2f}×", f"{g.slow_tasks} → {g.fast_tasks}",
            *(f"{100 * g.shares.get(what, 0.0):.0f} %" for what in most),
        ]
        for g in gains
    ]  # fmt: skip
    return markdown(columns, rows)
