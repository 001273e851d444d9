"""Vector clocks: how far every actor had come, as far as one of them knows.

An actor is anything that does one thing after the other and has a hashable name: a pipe of a core,
a stream. Its time is a count of what it did. A clock that knows time t of an actor comes after
everything that the actor did up to t; two things of which neither comes after the other may happen
in any order, or at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping


class VectorClock:
    """Actor → the latest of its times that is known to be over."""

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[Hashable, int] | None = None) -> None:
        self._known: dict[Hashable, int] = dict(known or {})

    def __getitem__(self, actor: Hashable) -> int:
        """The latest known time of an actor; 0 when nothing of it is known."""
        return self._known.get(actor, 0)

    def advance(self, actor: Hashable, time: int) -> None:
        """Learn that an actor's time is over."""
        if time > self._known.get(actor, 0):
            self._known[actor] = time

    def join(self, other: VectorClock) -> None:
        """Learn everything that another clock knows."""
        for actor, time in other._known.items():
            self.advance(actor, time)

    def copy(self) -> VectorClock:
        """A clock that knows the same, and goes on by itself."""
        return VectorClock(self._known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VectorClock) and self._known == other._known

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"VectorClock({self._known})"
