"""The values of one swept key: a list, a range, or draws from a distribution.

[64 KiB, 128 KiB]                              every one
{range: [0.8 GHz, 1.2 GHz], steps: 5}          at equal distances, both ends among them
{log_range: [0.3 TB/s, 4.8 TB/s], steps: 5}    at equal ratios
{uniform: [1, 64]}, {log_uniform: [1, 64]}, {normal: [MEAN, DEVIATION]}, {choice: [1, 2, 4]}
                                               drawn at random, `samples` times
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

from npusim.chip.schema import find
from npusim.chip.source import unknown_key
from npusim.errors import nearest
from npusim.explore.sweep.errors import ExperimentError

GRIDS = ("range", "log_range")
DISTRIBUTIONS = ("uniform", "log_uniform", "normal", "choice")
_ALLOWED = (
    "a list, {range: [from, to], steps: N}, {log_range: …, steps: N}, "
    f"or a distribution: {', '.join(DISTRIBUTIONS)}"
)


@dataclass(frozen=True)
class Draw:
    """A distribution: its kind and parameters, in base units."""

    kind: str
    values: tuple[Any, ...]
    whole: bool
    multiple_of: float | None = None

    @property
    def low(self) -> float:
        """The least value of uniform and log_uniform."""
        return float(self.values[0])

    @property
    def high(self) -> float:
        """The greatest value of uniform and log_uniform."""
        return float(self.values[1])

    def sample(self, rng: random.Random) -> Any:
        """One value."""
        if self.kind == "choice":
            return rng.choice(self.values)
        if self.kind == "normal":
            return self.fit(rng.gauss(*self.values))
        if self.kind == "uniform":
            return self.fit(rng.uniform(self.low, self.high))
        return self.fit(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))

    def fit(self, value: float) -> float:
        """A value as the key takes it: a whole number, a multiple."""
        return _fit(value, self.whole, self.multiple_of)


@dataclass(frozen=True)
class Swept:
    """A swept key, or several zipped ones, with rows of values, or with a distribution.

    Attributes:
        rows: a value for each key, as many rows as the axis has points.
    """

    keys: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...] = ()
    draw: Draw | None = None


def swept(where: str, name: str, given: object) -> Swept:
    """The axis that a line of `sweep` describes; "a.x, b.x" zips keys.

    Raises:
        ExperimentError: an unknown key, an empty axis, values that the key cannot take.
    """
    keys = tuple(part.strip() for part in name.split(","))
    at = f"{where}: sweep.{name}"
    for key in keys:
        if find(key) is None:
            known = unknown_key(f"{where}: sweep", key)
            raise ExperimentError(known.what, known.allowed, known.fix)
    if isinstance(given, Mapping):
        return _described(at, keys, given)
    if not isinstance(given, Sequence) or isinstance(given, str):
        given = [given]
    if not given:
        raise ExperimentError(f"{at} is empty", _ALLOWED, "give at least one value")
    return Swept(keys, tuple(_row(at, keys, value) for value in given))


def _row(at: str, keys: tuple[str, ...], value: object) -> tuple[Any, ...]:
    """One value of every key: a list gives each its own, anything else serves them all."""
    parts: Sequence[object] = value if isinstance(value, list) else [value] * len(keys)
    if len(parts) != len(keys):
        raise ExperimentError(
            f"{at}: {value!r} has {len(parts)} values", f"{len(keys)}, one for each zipped key",
            "write one value, or a list with one for each key",
        )  # fmt: skip
    return tuple(parse(at, key, part) for key, part in zip(keys, parts, strict=True))


def parse(at: str, key: str, value: object) -> Any:
    """A value in the key's base unit.

    Raises:
        ExperimentError: the key cannot take it.
    """
    entry = find(key)
    assert entry is not None, "checked before"
    if entry.children or entry.is_map:
        raise ExperimentError(f"{at} is a section", entry.allowed, "name one key of it")
    try:
        if entry.quantity is not None:
            return entry.quantity.parse(value)
    except PydanticCustomError as error:
        what = f"{at} = {value!r}: {(error.context or {}).get('problem', 'wrong')}"
        fix = str((error.context or {}).get("fix") or f"correct the values of {key}")
        raise ExperimentError(what, entry.allowed, fix) from None
    kinds: dict[type, tuple[type, ...]] = {
        int: (int,), float: (int, float), bool: (bool,), str: (str,),
    }  # fmt: skip
    wanted = kinds.get(entry.kind or object)
    if wanted and (not isinstance(value, wanted) or (entry.kind is int and value is True)):
        raise ExperimentError(f"{at} = {value!r}", entry.allowed, f"correct the values of {key}")
    return value


def _described(at: str, keys: tuple[str, ...], given: Mapping[str, object]) -> Swept:
    """A range or a distribution."""
    kinds = [k for k in given if k in (*GRIDS, *DISTRIBUTIONS)]
    others = [k for k in given if k not in (*GRIDS, *DISTRIBUTIONS, "steps", "multiple_of")]
    if others or len(kinds) != 1:
        word = str(others[0]) if others else ""
        near = nearest(word, (*GRIDS, *DISTRIBUTIONS, "steps", "multiple_of"))
        what = f"{at}: unknown key {word}" if others else f"{at}: {dict(given)!r}"
        raise ExperimentError(what, _ALLOWED, f"did you mean {near}?" if near else "choose one")
    kind = kinds[0]
    ends = given[kind]
    if not isinstance(ends, list) or (kind != "choice" and len(ends) != 2) or not ends:
        raise ExperimentError(
            f"{at}: {kind} = {ends!r}", f"{kind}: a list of two values", "write both in [ , ]"
        )
    values = tuple(parse(at, keys[0], value) for value in ends)
    entry = find(keys[0])
    whole = bool(entry and (entry.quantity.whole if entry.quantity else entry.kind is int))
    multiple = given.get("multiple_of")
    step = float(parse(at, keys[0], multiple)) if multiple is not None else None
    if kind != "choice" and not all(isinstance(v, int | float) for v in values):
        raise ExperimentError(f"{at}: {kind} of {ends!r}", "numbers", "use a list")
    if kind in ("log_range", "log_uniform") and min(values) <= 0:
        raise ExperimentError(f"{at}: {kind} from {ends!r}", "ends above 0", "raise the lower end")
    if kind in DISTRIBUTIONS:
        return Swept(keys, draw=Draw(kind, values, whole, step))
    rows = tuple((v,) * len(keys) for v in _grid(at, kind, values, given.get("steps"), whole, step))
    return Swept(keys, rows)


def _grid(
    at: str, kind: str, ends: tuple[float, ...], steps: object, whole: bool, step: float | None
) -> list[float]:
    if not isinstance(steps, int) or steps < 2:
        raise ExperimentError(
            f"{at}: steps = {steps!r}", "a whole number of 2 or more", "add `steps: 5`"
        )
    low, high = ends
    shares = [i / (steps - 1) for i in range(steps)]
    if kind == "log_range":
        found = [low * (high / low) ** s for s in shares]
    else:
        found = [low + (high - low) * s for s in shares]
    return list(dict.fromkeys(_fit(v, whole, step) for v in found))


def _fit(value: float, whole: bool, step: float | None) -> float:
    if step:
        value = max(step, round(value / step) * step)
    if whole:
        return round(value)
    return float(f"{value:.12g}")  # 1.2 TB/s, not 1200000000000.0002
