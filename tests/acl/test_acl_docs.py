"""docs/runtime.md says what is there: every function, every number."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import npusim.acl as acl
from npusim.runtime import Code

DOCS = (Path(__file__).parents[2] / "docs" / "runtime.md").read_text(encoding="utf-8")
MODULES = {"acl": acl, **{f"acl.{m}": getattr(acl, m) for m in ("rt", "mdl", "op", "nn", "util")}}
ELSEWHERE = {"acl": "npusim.acl.base", "acl.rt": "npusim.acl.reports"}


def functions(name: str, module: ModuleType) -> list[str]:
    """A module's public functions, in order."""
    homes = {module.__name__, ELSEWHERE.get(name)}
    found = inspect.getmembers(module, inspect.isfunction)
    return sorted(n for n, f in found if f.__module__ in homes and not n.startswith("_"))


@pytest.mark.parametrize("name", list(MODULES))
def test_the_table_of_functions_is_complete(name: str) -> None:
    found = functions(name, MODULES[name])
    assert f"| `{name}` | {len(found)} | {', '.join(found)} |" in DOCS


def test_the_count_is_right() -> None:
    total = sum(len(functions(name, module)) for name, module in MODULES.items())
    assert f"{total} functions." in DOCS


def test_every_number_is_told() -> None:
    told = {int(n) for n in re.findall(r"\b\d{6}\b", DOCS.split("## Numbers")[1])}
    assert told == {code.value for code in Code} - {0}
