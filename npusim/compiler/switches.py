"""CANN's files about fusion passes: fusion_switch.cfg read, fusion_result.json written.

A switch file is either lines `SoftmaxFusionPass:off`, or JSON:

    {"Switch": {"GraphFusion": {"ALL": "off", "ConvBatchnormFusionPass": "on"},
                "UBFusion": {"TbeEltwiseFusionPass": "off"}}}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from npusim.compiler.rewrite import Kind, PassReport, declared_passes
from npusim.errors import ModelError

_GROUPS = {"GraphFusion": Kind.GRAPH_FUSION, "UBFusion": Kind.UB_FUSION}
_STATES = ("on", "off")
_SESSION = "session_and_graph_id_0_0"


@dataclass(frozen=True)
class Switches:
    """What a switch file asks for.

    Attributes:
        disabled: passes to switch off.
        unknown: passes that it names and npusim does not have: CANN has some three hundred.
    """

    disabled: frozenset[str]
    unknown: tuple[str, ...]


def read_switches(path: Path) -> Switches:
    """Read a fusion_switch.cfg.

    Raises:
        ModelError: it cannot be read, or is not of that form.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise _error(path, f"cannot be read: {why}") from None
    asked = _from_json(path, text) if text.lstrip().startswith("{") else _from_lines(path, text)
    known = {p.name for p in declared_passes()}
    off = {name for name, state in asked.items() if state == "off"}
    unknown = tuple(sorted(set(asked) - known))
    return Switches(frozenset(off & known), unknown)


def _from_lines(path: Path, text: str) -> dict[str, str]:
    asked: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, state = (part.strip() for part in line.partition(":"))
        if not name or state not in _STATES:
            raise _error(path, f"line {number} is {line.strip()!r}")
        asked[name] = state
    return asked


def _from_json(path: Path, text: str) -> dict[str, str]:
    try:
        data = json.loads(text)
    except ValueError as e:
        raise _error(path, f"no JSON: {e}") from None
    groups = data.get("Switch")
    if not isinstance(groups, dict):
        raise _error(path, 'no object "Switch"')
    asked: dict[str, str] = {}
    for group, states in groups.items():
        if group not in _GROUPS or not isinstance(states, dict):
            raise _error(path, f"{group!r} in Switch")
        bad = [f"{name}: {state!r}" for name, state in states.items() if state not in _STATES]
        if bad:
            raise _error(path, f"{group}: {bad[0]}")
        every = states.pop("ALL", "on")
        asked |= {p.name: every for p in declared_passes() if p.kind is _GROUPS[group]}
        asked |= states
    return asked


def _error(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path}: {what}",
        'lines "PassName:on" or "PassName:off", or {"Switch": {"GraphFusion": {…}, "UBFusion": …}}',
        "correct the file",
    )


def fusion_result(reports: Sequence[PassReport]) -> dict[str, object]:
    """CANN's fusion_result.json: per fusion pass that ran, how often it matched and took effect.

    Counts are strings there; passes that are switched off do not appear.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for kind in _GROUPS.values():
        found[kind.value] = {}
        for r in reports:
            if r.kind is kind and r.ran:
                counts = {"effect_times": str(r.effects), "match_times": str(r.matches)}
                if kind is Kind.UB_FUSION:
                    counts["repository_hit_times"] = "0"
                found[kind.value][r.name] = counts
    return {_SESSION: found}
