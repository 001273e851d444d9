"""Results that hold for another chip: keyed by the chip keys that computing them read.

A computation is given a view of the chip that notes what it looks at. Its result holds for every
chip on which it would see the same: the simulation of a kernel that never asked for `l2.size` is
the same for all sizes of L2. The reuse is exact, since a computation is a function of what it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

from npusim.chip.spec import ChipSpec, Part

T = TypeVar("T")
Call = tuple[str, tuple[Hashable, ...]]
#: How a value is reached from a chip: attributes by name, methods by name and arguments.
Path = tuple[str | Call, ...]

_SECTION = "a section"  #: what is noted of a part: that it is there
_ABSENT = "nothing there"


class Reuse:
    """What was computed before. Life cycle: construct, then `get` for any chips.

    Attributes:
        hits: results that were there; misses: results that had to be computed.
    """

    def __init__(self) -> None:
        self.hits = self.misses = 0
        self._chip: ChipSpec | None = None  # the one asked for last, and what was seen of it
        self._values: dict[Path, Hashable] = {}
        self._known: dict[Hashable, dict[tuple[Path, ...], dict[Hashable, Any]]] = {}

    def get(self, what: Hashable, chip: ChipSpec, compute: Callable[[ChipSpec], T]) -> T:
        """The result for a chip, computed where no chip before looked the same.

        Args:
            what: all that the result depends on besides the chip.
            chip: may be a view that another computation was given: it sees what this one sees.
        """
        view = chip if isinstance(chip, _View) else None
        real: Any = view.seen if view is not None else chip
        known = self._known.setdefault(what, {})
        for paths, results in known.items():
            values = self._seen(real, paths)
            if values in results:
                self.hits += 1
                if view is not None:
                    view.note(dict(zip(paths, values, strict=True)))
                return cast(T, results[values])
        self.misses += 1
        noted: dict[Path, Hashable] = {}
        try:
            result = compute(cast(ChipSpec, _View(real, (), noted)))
        finally:
            if view is not None:
                view.note(noted)
        known.setdefault(tuple(noted), {})[tuple(noted.values())] = result
        return result

    def _seen(self, chip: ChipSpec, paths: tuple[Path, ...]) -> tuple[Hashable, ...]:
        """What a chip has at these paths; a chip never changes, so each is looked at once."""
        if chip is not self._chip:
            self._chip, self._values = chip, {}
        values = self._values
        for path in paths:
            if path not in values:
                values[path] = _look(chip, path)
        return tuple([values[path] for path in paths])


def reused(
    reuse: Reuse | None, what: Hashable, chip: ChipSpec, compute: Callable[[ChipSpec], T]
) -> T:
    """As `Reuse.get`; computed where nothing is kept."""
    return compute(chip) if reuse is None else reuse.get(what, chip, compute)


class _View:
    """A chip, or a part of one, that notes each value when it is first looked at."""

    def __init__(self, seen: Any, path: Path, noted: dict[Path, Hashable]) -> None:
        self.seen, self._path, self._noted = seen, path, noted

    def note(self, found: Mapping[Path, Hashable]) -> None:
        """Note what was looked at from here."""
        for path, value in found.items():
            self._noted.setdefault((*self._path, *path), value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.seen, name)
        if callable(value):
            value = self._method(name, value)
        else:
            value = self._kept(name, value)
        self.__dict__[name] = value  # the next look is an ordinary one
        return value

    def _kept(self, step: str | Call, value: Any) -> Any:
        path = (*self._path, step)
        self._noted.setdefault(path, _plain(value))
        return _View(value, path, self._noted) if isinstance(value, Part) else value

    def _method(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        known: dict[tuple[Hashable, ...], Any] = {}

        def call(*args: Hashable) -> Any:
            if args not in known:
                known[args] = self._kept((name, args), method(*args))
            return known[args]

        return call


def _look(chip: ChipSpec, path: Path) -> Hashable:
    value: Any = chip
    for step in path:
        if value is None:
            return _ABSENT
        value = getattr(value, step) if isinstance(step, str) else _call(value, *step)
    return _plain(value)


def _call(value: Any, method: str, args: tuple[Hashable, ...]) -> Any:
    return getattr(value, method)(*args)


def _plain(value: Any) -> Hashable:
    """A value that can be compared and be a key."""
    if isinstance(value, Part):
        return _SECTION
    if isinstance(value, Mapping):
        return tuple((k, v if isinstance(v, Part) else _plain(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return cast(Hashable, value)
