"""A chip as rows for `npusim chip show [--sources]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from npusim.chip.schema import find
from npusim.chip.spec import ChipSpec


class ChipRow(NamedTuple):
    """One value of a chip; grade and source are '' where the YAML gives none."""

    key: str
    value: str
    grade: str
    source: str


def chip_rows(spec: ChipSpec) -> list[ChipRow]:
    """Every value of `spec`, in the order of its sections, in human units."""
    rows = []
    for key, value in _leaves(spec.model_dump(exclude={"sources"}), ""):
        provenance = spec.sources.get(key)
        grade, source = (provenance.grade, provenance.source) if provenance else ("", "")
        rows.append(ChipRow(key, _human(key, value), grade, source))
    return rows


def _leaves(node: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(node, dict):
        for name, child in node.items():
            yield from _leaves(child, f"{key}.{name}" if key else name)
    elif node is not None:
        yield key, node


def _human(key: str, value: object) -> str:
    entry = find(key)
    if entry and entry.quantity and isinstance(value, int | float):
        return entry.quantity.format(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
