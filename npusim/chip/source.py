"""Chip YAML files as flat maps of leaves: reading, `extends:`, overrides.

A leaf is a plain value or `{value: 64 KiB, grade: documented, source: ini}`; when such a `value`
is itself a map or a section, grade and source hold for everything in it. `references:` maps a
short source tag to its long text: "ini: [AICoreSpec] l0_a_size" shows as that text and detail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from npusim.chip.schema import closest, find
from npusim.chip.spec import Provenance
from npusim.data import data_dir
from npusim.errors import ChipError, nearest

GRADES = ("documented", "measured", "inferred", "assumed", "user")
_DEEPEST = 4
"""Dots in the deepest key, core.vector.costs.exp.b16."""

if TYPE_CHECKING:
    from yaml import SafeLoader as _BaseLoader
else:
    _BaseLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Leaf:
    """A value with its provenance (None: not given) and the file or option that set it."""

    value: object
    provenance: Provenance | None
    where: str


Leaves = dict[str, Leaf]
"""Dotted key -> leaf. A section without keys is a leaf whose value is an empty dict."""


class _Loader(_BaseLoader):
    """The safe loader, but a key written twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            problem = None
            if not isinstance(key, yaml.ScalarNode):
                problem = "a key that is not plain text"
            elif key.value in seen:
                problem = f"the key '{key.value}' stands twice"
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        result: dict[Any, Any] = super().construct_mapping(node, deep)
        return result


def list_chips() -> list[str]:
    """Names of the shipped chips."""
    return sorted(path.stem for path in data_dir("configs/chips").glob("*.yaml"))


def chip_path(name_or_path: str | Path, base: Path | None = None) -> Path:
    """The YAML file of a shipped chip's name, or of a path (relative to the folder `base`)."""
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")) or "/" in text or "\\" in text:
        path = (base / text if base else Path(text)).expanduser()
        if path.is_file():
            return path
        raise ChipError(
            f"{path}: no such chip file", "an existing chip YAML file, or a shipped chip's name",
            f"check the path; shipped chips: {', '.join(list_chips())}",
        )  # fmt: skip
    for folder in filter(None, (base, data_dir("configs/chips"))):
        path = folder / f"{text.lower()}.yaml"
        if path.is_file():
            return path
    close = nearest(text.lower(), list_chips())
    raise ChipError(
        f"no chip named '{text}'", f"{', '.join(list_chips())}, or the path of a chip YAML file",
        f"did you mean {close}?" if close else "pick one of these, or give a path with .yaml",
    )  # fmt: skip


def read_leaves(path: Path) -> Leaves:
    """All leaves of a chip file, those it extends included."""
    return _read_chip(path, ())[0]


def _read_chip(path: Path, above: tuple[Path, ...]) -> tuple[Leaves, dict[str, str]]:
    """Leaves and source tags of a chip file; `above` are the files that extend it."""
    path = path.resolve()
    where = _short(path)
    if path in above:
        chain = " -> ".join(p.name for p in (*above, path))
        raise ChipError(
            f"{where}: extends = {chain} is a cycle", "a chain of chips that ends",
            "take `extends:` out of one of these files",
        )  # fmt: skip
    tree = _read_yaml(path, where)
    parent, tags = tree.pop("extends", None), tree.pop("references", None) or {}
    if not isinstance(tags, dict):
        raise ChipError(
            f"{where}: references = {tags!r} is not a map",
            "a map from short source tags to their long text", "write `tag: long text` lines",
        )  # fmt: skip
    leaves: Leaves = {}
    references: dict[str, str] = {}
    if parent is not None:
        if not isinstance(parent, str):
            raise ChipError(
                f"{where}: extends = {parent!r} is not a name",
                "the name of a shipped chip, or the path of a chip YAML file",
                "write e.g. `extends: ascend910a`",
            )  # fmt: skip
        leaves, references = _read_chip(chip_path(parent, path.parent), (*above, path))
        leaves.pop("description", None)
    leaves["name"] = Leaf(path.stem, None, where)
    references |= {str(tag): str(text) for tag, text in tags.items()}
    own: Leaves = {}
    _flatten(tree, "", None, where, references, own)
    for key, leaf in own.items():
        put(leaves, key, leaf)
    return leaves, references


def put(leaves: Leaves, key: str, leaf: Leaf) -> None:
    """Set one key: a value replaces the section of that name, and the other way round."""
    entry = find(key)
    if entry is None:
        raise unknown_key(leaf.where, key)
    if isinstance(leaf.value, bool) and entry.kind is not bool:
        what = f"{leaf.where}: {key} = {str(leaf.value).lower()}"
        raise ChipError(what, entry.allowed, f"correct {key}")
    below = [name for name in leaves if name.startswith(f"{key}.")]
    if leaf.value == {} and below:
        return
    for name in below:
        del leaves[name]
    parts = key.split(".")
    for cut in range(1, len(parts)):
        leaves.pop(".".join(parts[:cut]), None)
    leaves[key] = leaf


def apply_overrides(leaves: Leaves, overrides: Sequence[str]) -> None:
    """Apply "hbm.bandwidth=2.4TB/s" strings, in order; their grade is "user"."""
    for text in overrides:
        key, equals, raw = (part.strip() for part in text.partition("="))
        where = f"--set {text}"
        if not equals or not key or not raw:
            raise ChipError(
                f"{where}: not an override", "key.path=value, e.g. hbm.bandwidth=2.4TB/s",
                f"write {key or 'core.ub.size'}=value",
            )  # fmt: skip
        try:
            value = yaml.load(raw, _Loader)
        except yaml.YAMLError:
            value = raw
        provenance = Provenance(grade="user", source=f"override {key}={raw}")
        own: Leaves = {}
        _flatten(value, key, provenance, where, {}, own)
        for name, leaf in own.items():
            put(leaves, name, leaf)


def unknown_key(where: str, key: str) -> ChipError:
    """The error for a key that no chip has."""
    close = closest(key)
    parent = find(key.rpartition(".")[0])
    allowed = (
        f"{parent.name} is {parent.allowed}" if parent else "the keys `npusim chip show` lists"
    )
    fix = f"did you mean {close}?" if close else f"remove {key}"
    return ChipError(f"{where}: unknown key {key}", allowed, fix)


def nest(leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    """Leaves as the nested dict they stand for."""
    tree: dict[str, Any] = {}
    for key, leaf in leaves.items():
        *sections, last = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = dict(leaf.value) if isinstance(leaf.value, dict) else leaf.value
    return tree


def _flatten(
    node: object,
    key: str,
    provenance: Provenance | None,
    where: str,
    references: Mapping[str, str],
    out: Leaves,
) -> None:
    """Enter `node`, found at `key`, into `out`, leaf by leaf."""
    if key and isinstance(node, dict) and "value" in node:
        provenance = _provenance(node, key, where, references)
        node = node["value"]
    if isinstance(node, dict) and node:
        if key.count(".") > _DEEPEST:  # also what a YAML anchor inside itself leads to
            raise unknown_key(where, key)
        for name, child in node.items():
            dotted = f"{key}.{name}" if key else str(name)
            _flatten(child, dotted, provenance, where, references, out)
    elif key:
        out[key] = Leaf(node, provenance, where)


def _provenance(
    node: Mapping[object, object], key: str, where: str, references: Mapping[str, str]
) -> Provenance | None:
    """Grade and source of a leaf form; the source tag before ':' is spelled out."""
    for name in node:
        if name not in ("value", "grade", "source"):
            close = nearest(str(name), ("value", "grade", "source"))
            raise ChipError(
                f"{where}: unknown key {key}.{name}", "value, grade and source in a leaf",
                f"did you mean {key}.{close}?" if close else f"remove {key}.{name}",
            )  # fmt: skip
    if "grade" not in node and "source" not in node:
        return None
    grade, source = node.get("grade"), node.get("source")
    if grade not in GRADES or not isinstance(source, str) or not source:
        bad = "grade" if grade not in GRADES else "source"
        close = nearest(str(grade), GRADES)
        raise ChipError(
            f"{where}: {key}.{bad} = {node.get(bad)!r}",
            f"one of {', '.join(GRADES)}" if bad == "grade" else "text that says where it is from",
            f"did you mean {close}?" if bad == "grade" and close else f"set {key}.{bad}",
        )  # fmt: skip
    tag, colon, detail = source.partition(":")
    text = references.get(tag)
    return Provenance(grade=str(grade), source=f"{text}{colon}{detail}" if text else source)


def _read_yaml(path: Path, where: str) -> dict[str, Any]:
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ChipError(
            f"{where}: cannot be read ({error})", "a readable UTF-8 chip YAML file",
            "check the path and its permissions",
        ) from error  # fmt: skip
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{where}:{mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ChipError(
            f"{line}: not valid YAML: {problem}", "YAML of `key: value` lines, indented by spaces",
            "correct that line",
        ) from error  # fmt: skip
    if not isinstance(tree, dict):
        raise ChipError(
            f"{where}: is {type(tree).__name__}, not a chip", "a YAML map of the keys of a chip",
            "start from a copy of configs/chips/ascend910a.yaml, or write `extends: ascend910a`",
        )  # fmt: skip
    return tree


def _short(path: Path) -> str:
    """`path` as shown in errors: relative to the working folder when below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
