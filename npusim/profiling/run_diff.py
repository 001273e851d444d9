"""Two runs beside each other, op by op: what changed, and why.

The runs are the JSON files of `npusim run --json`: other chips, other options, other models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from npusim.errors import ModelError
from npusim.profiling.tables import lines, table
from npusim.profiling.text import duration, percent, resource, shorten, signed

_NAME_WIDTH = 34
_KEYS = ("chip", "workload", "total_time_us", "ops", "memory")


@dataclass(frozen=True)
class OpTime:
    """An op of a run: its time and its pipes' busy time, µs."""

    name: str
    op_type: str
    us: float
    bound: str
    bytes_hbm: int
    pipes: Mapping[str, float]

    def share(self, pipe: str) -> float:
        """Busy share of a pipe."""
        return self.pipes.get(pipe, 0.0) / self.us if self.us else 0.0


@dataclass(frozen=True)
class RunFile:
    """A run as `npusim run --json` wrote it."""

    path: Path
    title: str
    total_us: float
    peak_bytes: int
    ops: tuple[OpTime, ...]


@dataclass(frozen=True)
class OpPair:
    """An op in both runs, or in one: what is missing there is in `merged`.

    Attributes:
        merged: ops of the other run, between the same neighbours, that this one took the place of.
    """

    before: OpTime | None
    after: OpTime | None
    merged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the op, in the run that has it."""
        op = self.after or self.before
        assert op is not None
        return op.name

    @property
    def change(self) -> float:
        """µs that the second run takes more."""
        return (self.after.us if self.after else 0.0) - (self.before.us if self.before else 0.0)


def load_run(path: Path) -> RunFile:
    """Read a run.

    Raises:
        ModelError: no file that `npusim run --json` wrote.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in _KEYS if key not in data]
        if missing:
            raise ValueError(f"no {', '.join(missing)} in it")
        ops = tuple(_op(op) for op in data["ops"])
    except (OSError, UnicodeDecodeError, ValueError, TypeError, KeyError, AttributeError) as e:
        why = e.strerror if isinstance(e, OSError) else f"{type(e).__name__}: {e}"
        raise ModelError(
            f"{path} is no run of npusim: {why}",
            "a file that `npusim run MODEL --json PATH` wrote",
            "write one, then compare",
        ) from None
    options = " ".join(f"{k}={v}" for k, v in (data.get("options") or {}).items())
    title = f"{data['workload']} batch {data.get('batch')} {data.get('precision')}, {data['chip']}"
    return RunFile(
        path, f"{title}; {options}", float(data["total_time_us"]),
        int(data["memory"]["peak_bytes"]), ops,
    )  # fmt: skip


def _op(op: Mapping[str, Any]) -> OpTime:
    return OpTime(
        name=str(op["name"]),
        op_type=str(op["op_type"]),
        us=float(op["duration_us"]),
        bound=str(op["bound"]),
        bytes_hbm=int(op["bytes_hbm"]),
        pipes={str(k): float(v) for k, v in op["pipes"].items()},
    )


def align(before: Sequence[OpTime], after: Sequence[OpTime]) -> list[OpPair]:
    """Ops of two runs, side by side in order.

    Ops of the same name are one; between two of them, what only one run has stands by itself,
    and the op before it is told as what took its place.
    """
    ours = {op.name for op in before} & {op.name for op in after}
    left, right = _segments(before, ours), _segments(after, ours)
    by_anchor = {anchor.name if anchor else "": rest for anchor, rest in right}
    found: dict[str, OpTime] = {op.name: op for op in after}
    pairs: list[OpPair] = []
    for anchor, rest in left:
        other = by_anchor.pop(anchor.name if anchor else "", [])
        merged = tuple(op.name for op in rest) if not other else ()
        if anchor is not None:
            pairs.append(OpPair(anchor, found[anchor.name], merged))
        for a, b in zip_longest(rest, other):
            pairs += [OpPair(a, None)] if a else []
            pairs += [OpPair(None, b)] if b else []
    pairs += [OpPair(None, op) for rest in by_anchor.values() for op in rest]
    return pairs


def _segments(ops: Sequence[OpTime], shared: set[str]) -> list[tuple[OpTime | None, list[OpTime]]]:
    """Each shared op with the ones after it that the other run does not have."""
    found: list[tuple[OpTime | None, list[OpTime]]] = [(None, [])]
    for op in ops:
        if op.name in shared:
            found.append((op, []))
        else:
            found[-1][1].append(op)
    return found


def explain(pair: OpPair) -> str:
    """One sentence: what changed most in an op, and why."""
    a, b = pair.before, pair.after
    if a is None or b is None:
        op, where = (b, "second") if b else (a, "first")
        assert op is not None
        return f"{op.name} ({op.op_type}) is only in the {where} run: {duration(op.us)}"
    pipes = sorted({*a.pipes, *b.pipes})
    parts = [f"{a.name} went from {duration(a.us)} to {duration(b.us)}"]
    pipe = max(pipes, key=lambda p: abs(b.share(p) - a.share(p)), default="")
    if pipe and abs(b.share(pipe) - a.share(pipe)) >= 0.01:
        parts.append(
            f"its {resource(pipe)} from {percent(a.share(pipe))} to {percent(b.share(pipe))} busy"
        )
    if a.bound != b.bound:
        parts.append(f"its bound from {resource(a.bound)} to {resource(b.bound)}")
    elif a.bound:
        parts.append(f"bound by {resource(a.bound)} in both")
    if pair.merged:
        parts.append(f"it does the work of {', '.join(pair.merged[:3])} too")
    return "; ".join(parts)


def diff_json(a: RunFile, b: RunFile, pairs: Sequence[OpPair]) -> dict[str, object]:
    """The comparison as plain data; µs."""
    return {
        "before": {"path": str(a.path), "title": a.title, "total_us": a.total_us},
        "after": {"path": str(b.path), "title": b.title, "total_us": b.total_us},
        "ops": [
            {
                "name": p.name,
                "before_us": p.before.us if p.before else None,
                "after_us": p.after.us if p.after else None,
                "change_us": p.change,
                "bound_before": p.before.bound if p.before else None,
                "bound_after": p.after.bound if p.after else None,
                "merged": list(p.merged),
                "why": explain(p),
            }
            for p in pairs
        ],
    }


def print_diff(a: RunFile, b: RunFile, pairs: Sequence[OpPair], console: Console, top: int) -> None:
    """Print totals, the ops that changed most, and a sentence on the first of them."""
    ordered = sorted(pairs, key=lambda p: -abs(p.change))
    change = b.total_us / a.total_us - 1 if a.total_us else 0.0
    hbm = [sum(op.bytes_hbm for op in run.ops) / 1e6 for run in (a, b)]
    both = [p for p in ordered if p.before and p.after and p.change]
    only = [sum(p.before is None for p in pairs), sum(p.after is None for p in pairs)]
    lines(
        console,
        [
            ("first", a.title),
            ("second", b.title),
            ("time", f"{duration(a.total_us)} → {duration(b.total_us)} ({signed(change)})"),
            ("ops", f"{len(a.ops)} → {len(b.ops)}; {only[1]} only in the first, {only[0]} only "
             "in the second"),
            ("HBM", f"{hbm[0]:,.1f} MB → {hbm[1]:,.1f} MB"),
            ("memory", f"{a.peak_bytes / 1e6:,.1f} MB → {b.peak_bytes / 1e6:,.1f} MB"),
            *([("most", explain((both or ordered)[0]))] if both or ordered else []),
        ],
    )  # fmt: skip
    found = table("What changed most", "op", "type", ">first µs", ">second µs", ">change", "bound")
    for p in ordered[:top]:
        op = p.after or p.before
        assert op is not None
        bounds = dict.fromkeys(resource(x.bound) for x in (p.before, p.after) if x and x.bound)
        cells = (
            shorten(p.name, _NAME_WIDTH), op.op_type,
            f"{p.before.us:,.2f}" if p.before else "-", f"{p.after.us:,.2f}" if p.after else "-",
            f"{p.change:+,.2f}", " → ".join(bounds),
        )  # fmt: skip
        found.add_row(*map(Text, cells))
    if len(ordered) > top:
        rest = sum(p.change for p in ordered[top:])
        found.caption = f"{len(ordered) - top} more ops, {rest:+,.1f} µs in all"
    console.print(found)
