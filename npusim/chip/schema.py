"""The dotted keys of a chip ("core.ub.size"), read off the models in `spec`."""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import dataclass

from pydantic import BaseModel

from npusim.chip.spec import ChipSpec
from npusim.chip.units import Quantity
from npusim.errors import nearest

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list of names",
}


@dataclass(frozen=True)
class Key:
    """One dotted key: a section (`children` set), a map of numbers, or a single value."""

    name: str
    quantity: Quantity | None = None
    kind: type | None = None
    children: tuple[str, ...] = ()
    is_map: bool = False

    @property
    def allowed(self) -> str:
        """What may stand at this key."""
        if self.children:
            return f"a section with the keys {', '.join(self.children)}"
        if self.is_map:
            return "a section of names with their values"
        if self.quantity:
            return self.quantity.allowed
        return _WORDS.get(self.kind or str, "a value")


@functools.cache
def keys() -> dict[str, Key]:
    """Every key a chip may have; `*` stands for the free names of a map ("core.cube.k.*")."""
    found: dict[str, Key] = {}
    _walk(ChipSpec, "", found)
    return found


def find(key: str) -> Key | None:
    """The schema entry of a dotted key, or None when a chip has no such key."""
    parts = key.split(".")
    for cut in range(len(parts), 0, -1):
        stem, rest = ".".join(parts[:cut]), parts[cut:]
        entry = keys().get(stem)
        if entry and not rest:
            return entry
        if entry and entry.is_map:
            return keys().get(".".join([stem, "*", *rest[1:]]))
    return None


def closest(key: str) -> str:
    """The valid key that `key` most probably meant, or ''."""
    options = [name for name in keys() if "*" not in name]
    if ends := [name for name in options if name.endswith(f".{key}")]:
        return min(ends, key=len)
    stem, _, last = key.rpartition(".")
    parent = find(stem)
    if parent and (sibling := nearest(last, parent.children)):
        return f"{stem}.{sibling}"
    return stem if parent and not parent.children else nearest(key, options)


def _walk(model: type[BaseModel], prefix: str, found: dict[str, Key]) -> None:
    for field, info in model.model_fields.items():
        name = f"{prefix}{field}"
        if name == "sources":
            continue
        quantity = next((m for m in info.metadata if isinstance(m, Quantity)), None)
        _add(name, info.annotation, quantity, found)


def _add(name: str, annotation: object, quantity: Quantity | None, found: dict[str, Key]) -> None:
    """Enter `name` and, for a section or a map, everything below it."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(a for a in typing.get_args(annotation) if a is not types.NoneType)
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *metadata = typing.get_args(annotation)
        quantity = next((m for m in metadata if isinstance(m, Quantity)), quantity)
    origin = typing.get_origin(annotation)
    if origin is dict:
        found[name] = Key(name, is_map=True, kind=dict)
        _add(f"{name}.*", typing.get_args(annotation)[1], None, found)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        found[name] = Key(name, children=tuple(annotation.model_fields))
        _walk(annotation, f"{name}.", found)
    else:
        kind = origin or annotation
        found[name] = Key(name, quantity, kind if isinstance(kind, type) else None)
