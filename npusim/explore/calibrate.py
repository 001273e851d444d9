"""Calibration: chosen constants of a chip, fitted to recorded operator times.

A fitted constant is one number of the hardware for all rows; nothing is fitted per net, shape or
row. The fit is a least-squares one over log(predicted / measured), each row weighted by its share
of the measured time, with outliers damped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, sqrt

import yaml

from npusim.chip import ChipSpec, load_chip
from npusim.errors import ChipError, UnsupportedError
from npusim.explore.replay import Replay, replay
from npusim.frontends.recorded import RecordedOp
from npusim.timeline.replayed import accuracy

_RANGE = (0.25, 4.0)  #: a fitted value stays within these multiples of the old one
_STEP = 0.05  #: relative step of the derivatives: cycles are whole, a smaller one sees nothing
_DAMPED = 0.1  #: log ratios above this count linearly, not squared
_RUNS = 12  #: steps of the solver at most; each replays the profile once per key


@dataclass(frozen=True)
class FittedKey:
    """A key of the chip, in its base unit.

    Attributes:
        sensitivity: relative change of the summed time for a relative change of the key.
    """

    key: str
    old: float
    new: float
    sensitivity: float


@dataclass(frozen=True)
class Calibration:
    """A fit: its keys, and the time-weighted error before and after."""

    chip: str
    rows: int
    keys: tuple[FittedKey, ...]
    error_before: float
    error_after: float


def calibrate(
    ops: Sequence[RecordedOp],
    chip: str,
    keys: Sequence[str],
    *,
    jobs: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Calibration:
    """Fit keys of a chip to a profile. Rows that npusim cannot replay do not count.

    Raises:
        ChipError: a key that is no number with a fraction. UnsupportedError: scipy is missing,
            or no row can be replayed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise UnsupportedError(
            "calibration needs scipy, which is not installed",
            "pip install 'npusim[calibrate]'",
            "install it",
        ) from None
    base = load_chip(chip)
    old = [key_value(base, key) for key in keys]
    first = replay(ops, base, jobs=jobs)
    rows = [r.op for r in first.covered if r.op.measured_us > 0]
    if not rows:
        raise UnsupportedError(
            "no row of the profile can be replayed", "known operator types", "see `npusim replay`"
        )
    mean = sum(op.measured_us * op.count for op in rows) / len(rows)
    runs = 0

    def at(factors: Sequence[float]) -> tuple[Replay, ChipSpec]:
        pairs = zip(keys, old, factors, strict=True)
        spec = load_chip(chip, [f"{key}={float(value * factor)!r}" for key, value, factor in pairs])
        return replay(rows, spec, jobs=jobs), spec

    def residuals(factors: Sequence[float]) -> list[float]:
        nonlocal runs
        runs += 1
        if progress is not None:
            progress("fit", runs, _RUNS * (len(keys) + 1))
        return [
            sqrt(r.measured_total / mean) * log(_predicted(r.predicted_us, r.reason)
                                                / r.op.measured_us)
            for r in at(factors)[0].rows
        ]  # fmt: skip

    start = [1.0] * len(keys)
    fit = least_squares(
        residuals, start, bounds=_RANGE, diff_step=_STEP, loss="soft_l1", f_scale=_DAMPED,
        max_nfev=_RUNS, xtol=1e-3, ftol=1e-4,
    )  # fmt: skip
    factors = [float(x) for x in fit.x]
    before, after = (accuracy(r.plain(spec)) for r, spec in (at(start), at(factors)))
    fitted = []
    for i, (key, value) in enumerate(zip(keys, old, strict=True)):
        moved = [x * (1 + _STEP if i == j else 1) for j, x in enumerate(factors)]
        result, spec = at(moved)
        change = accuracy(result.plain(spec)).predicted / after.predicted - 1
        fitted.append(FittedKey(key, value, value * factors[i], change / _STEP))
    return Calibration(base.name, len(rows), tuple(fitted), before.weighted, after.weighted)


def key_value(chip: ChipSpec, key: str) -> float:
    """A key's number, in its base unit.

    Raises:
        ChipError: there is no such key, or it cannot be varied smoothly.
    """
    value: object = chip
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    if not isinstance(value, float) or value <= 0:
        raise ChipError(
            f"--free {key}: {'not a key of the chip' if value is None else f'it is {value!r}'}",
            "keys that are a rate, a time or a share above 0 (whole numbers cannot be fitted)",
            f"see `npusim chip show {chip.name}`",
        )
    return value


def calibrated_yaml(found: Calibration, extends: str, data: str) -> str:
    """A chip that extends the one that was fitted; each number says where it comes from."""
    tree: dict[str, object] = {
        "name": f"{found.chip}-fitted",
        "description": f"{found.chip}, {len(found.keys)} constants fitted to {data}",
        "extends": extends,
    }
    for fitted in found.keys:
        node = tree
        *sections, last = fitted.key.split(".")
        for section in sections:
            child = node.setdefault(section, {})
            assert isinstance(child, dict)
            node = child
        node[last] = {
            "value": fitted.new,
            "grade": "inferred",
            "source": f"npusim calibrate: least squares over {found.rows} rows of {data}; "
            f"error {found.error_before:.1%} -> {found.error_after:.1%}; was {fitted.old:g}",
        }
    return yaml.safe_dump(tree, sort_keys=False, width=100)


def _predicted(us: float | None, reason: str) -> float:
    if us is None:
        raise UnsupportedError(
            f"a row cannot be replayed with the values tried: {reason}",
            "keys that leave all kernels possible",
            "fit other keys",
        )
    return us
