"""`load_chip`: from a name or a YAML file, with overrides, to a validated `ChipSpec`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from npusim.chip.schema import find
from npusim.chip.source import (
    Leaves,
    apply_overrides,
    chip_path,
    nest,
    read_leaves,
)
from npusim.chip.spec import ChipSpec
from npusim.errors import ChipError


def load_chip(name_or_path: str | Path, overrides: Sequence[str] = ()) -> ChipSpec:
    """Load and validate a chip.

    Args:
        name_or_path: a shipped chip ("ascend910a") or the path of a chip YAML file.
        overrides: "key.path=value" strings, e.g. "hbm.bandwidth=2.4TB/s"; later ones win.

    Raises:
        ChipError: with file, dotted key, the value seen, what is allowed, and the fix.
    """
    return build_chip(read_leaves(chip_path(name_or_path)), overrides)


def build_chip(leaves: Leaves, overrides: Sequence[str] = ()) -> ChipSpec:
    """Validate the chip of leaves that were read before; they stay as they are.

    Raises:
        ChipError: see `load_chip`.
    """
    leaves = dict(leaves)
    apply_overrides(leaves, overrides)
    tree = nest(leaves)
    tree["sources"] = {key: leaf.provenance for key, leaf in leaves.items() if leaf.provenance}

    def where(key: str) -> str:
        """The file or option that set `key`, else the chip's own file."""
        parts = key.split(".")
        for cut in range(len(parts), 0, -1):
            stem = ".".join(parts[:cut])
            for name, leaf in leaves.items():
                if name == stem or (cut == len(parts) and name.startswith(f"{stem}.")):
                    return leaf.where
        return leaves["name"].where

    try:
        return ChipSpec.model_validate(tree, context={"where": where})
    except ValidationError as error:
        raise _explain(error, where) from None


def _explain(error: ValidationError, where: Callable[[str], str]) -> ChipError:
    """The first pydantic error as ours; a wrong value before a missing one."""
    first: Any = min(error.errors(include_url=False), key=lambda e: e["type"] == "missing")
    key = ".".join(map(str, first["loc"]))
    context, entry = first.get("ctx", {}), find(key)
    allowed = context.get("allowed") or (entry.allowed if entry else first["msg"])
    if first["type"] == "missing":
        fix = f"set {key}, or write `extends:` with a chip that has it"
        return ChipError(f"{where(key)}: {key} is missing", allowed, fix)
    is_section = entry is not None and (entry.is_map or bool(entry.children))
    problem = "not a section" if is_section else context.get("problem") or first["msg"].lower()
    what = f"{where(key)}: {key} = {first['input']!r}: {problem}".replace("\n", " ")
    return ChipError(what, allowed, context.get("fix") or f"correct {key}")
