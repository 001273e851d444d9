"""A replayed profile as plain data, and how near it is to what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median, quantiles

SMALL_US = 10.0  #: ops below this are mostly launch; percentage errors leave them out


@dataclass(frozen=True)
class ReplayedOp:
    """One row of a profile, measured and predicted.

    Attributes:
        net: the profile it stands in.
        count: launches; measured_us and predicted_us are of one of them.
        predicted_us: None where the row could not be replayed; reason says why.
        bound: what binds the predicted time, bound_share its share.
        roofline_us: the plain roofline's prediction.
        shapes: operands in one line; source: where the figure was published, if it was.
    """

    net: str
    name: str
    op_type: str
    count: int
    measured_us: float
    predicted_us: float | None
    reason: str
    bound: str
    bound_share: float
    block_dim: int
    roofline_us: float
    shapes: str = ""
    source: str = ""

    @property
    def measured(self) -> float:
        """Measured µs of all launches."""
        return self.measured_us * self.count

    @property
    def predicted(self) -> float:
        """Predicted µs of all launches; 0 where not replayed."""
        return (self.predicted_us or 0.0) * self.count

    @property
    def error(self) -> float:
        """Predicted minus measured, µs of all launches."""
        return self.predicted - self.measured


@dataclass(frozen=True)
class TimedModel:
    """A whole model's published throughput beside the simulated one, samples/s.

    Attributes:
        name: as published; model: the built-in model with its sizes and options.
        measured_per_s: includes the host; simulated_per_s: the device alone.
    """

    name: str
    chip: str
    model: str
    batch: int
    measured_per_s: float
    simulated_per_s: float
    source: str

    @property
    def ratio(self) -> float:
        """Simulated over measured throughput."""
        return self.simulated_per_s / self.measured_per_s


@dataclass(frozen=True)
class Accuracy:
    """Errors over a set of rows. Only covered rows count, except in `coverage`.

    Attributes:
        rows, covered: how many there are, and how many were replayed.
        measured, predicted: µs of all launches of the covered rows.
        coverage: share of the measured time that was replayed.
        median_ape, p90_ape: of |predicted - measured| / measured over rows of at least
            `SMALL_US`; None where there are none.
        weighted: sum |predicted - measured| / sum measured.
        bias: geometric mean of predicted / measured, minus 1.
        sum_error: sum predicted / sum measured, minus 1.
    """

    rows: int
    covered: int
    measured: float
    predicted: float
    coverage: float
    median_ape: float | None
    p90_ape: float | None
    weighted: float
    bias: float
    sum_error: float


def accuracy(
    ops: Iterable[ReplayedOp],
    time: Callable[[ReplayedOp], float] = lambda op: op.predicted_us or 0.0,
) -> Accuracy:
    """How near `time` (µs of one launch; default: the prediction) is to the measurement."""
    rows = list(ops)
    done = [op for op in rows if op.predicted_us is not None and op.measured_us > 0]
    everything = sum(op.measured for op in rows)
    measured = sum(op.measured for op in done)
    predicted = sum(time(op) * op.count for op in done)
    apart = sum(abs(time(op) - op.measured_us) * op.count for op in done)
    apes = [abs(time(op) / op.measured_us - 1) for op in done if op.measured_us >= SMALL_US]
    logs = [log(time(op) / op.measured_us) for op in done if time(op) > 0]
    return Accuracy(
        rows=len(rows),
        covered=len(done),
        measured=measured,
        predicted=predicted,
        coverage=measured / everything if everything else 0.0,
        median_ape=median(apes) if apes else None,
        p90_ape=_p90(apes) if apes else None,
        weighted=apart / measured if measured else 0.0,
        bias=exp(sum(logs) / len(logs)) - 1 if logs else 0.0,
        sum_error=predicted / measured - 1 if measured else 0.0,
    )


def grouped(
    ops: Iterable[ReplayedOp], key: Callable[[ReplayedOp], str]
) -> dict[str, list[ReplayedOp]]:
    """Rows by a key, the group with the most measured time first."""
    groups: dict[str, list[ReplayedOp]] = {}
    for op in ops:
        groups.setdefault(key(op), []).append(op)
    return dict(sorted(groups.items(), key=lambda item: -sum(op.measured for op in item[1])))


def _p90(values: Sequence[float]) -> float:
    return values[0] if len(values) == 1 else quantiles(values, n=10, method="inclusive")[-1]
