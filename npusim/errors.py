"""The one error type of npusim: what is wrong, what is allowed, how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class NpusimError(Exception):
    """An error a user can act on, in three lines.

    Args:
        what: what is wrong: the file, key or node, and the value seen.
        allowed: what would have been accepted.
        fix: what to do about it.
    """

    def __init__(self, what: str, allowed: str, fix: str) -> None:
        super().__init__(what, allowed, fix)  # all three: SimPy and pickle rebuild from args
        self.what = what
        self.allowed = allowed
        self.fix = fix

    def __str__(self) -> str:
        return f"error: {self.what}\nallowed: {self.allowed}\nfix: {self.fix}"


class ChipError(NpusimError):
    """A chip description is wrong: key, unit, type, or an impossible combination."""


class GraphError(NpusimError):
    """A graph is malformed: dangling tensor, wrong shape, cycle."""


class ModelError(NpusimError):
    """A model file or workload cannot be read or bound to shapes."""


class UnsupportedError(NpusimError):
    """An operator, dtype or option that npusim (or the chip) does not support."""


class UnsupportedNodesError(UnsupportedError):
    """Nodes of a model that cannot be run. `problems` has them all, in the model's order."""

    def __init__(self, what: str, allowed: str, fix: str, problems: Sequence[Any] = ()) -> None:
        super().__init__(what, allowed, fix)
        self.problems = tuple(problems)


class NeedsValuesError(UnsupportedError):
    """A shape or a branch follows from the elements of an input, and these are not known."""


class KernelError(NpusimError):
    """A kernel broke a rule of the machine: capacity, alignment, limits."""


class BufferFullError(KernelError):
    """A kernel asks for more of an on-chip buffer than is left of it."""


class DeadlockError(NpusimError):
    """A simulation that cannot progress."""


class AccountingError(NpusimError):
    """An accounting invariant failed: the simulator itself is wrong."""


def nearest(word: str, options: Iterable[str]) -> str:
    """The option closest to `word`, or '' when none is close."""
    hits = difflib.get_close_matches(word, list(options), n=1, cutoff=0.5)
    return hits[0] if hits else ""
