"""What the documentation's site has beside the files in this folder, made while it is built.

The references come from the code: chip and workload files from their pydantic models, commands
from their argparse parsers. The notebooks become pages with the outputs that are kept in them.
Where a page has `<!-- readme: Heading -->`, that section of the README stands.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel

from npusim.chip import ChipSpec, chip_rows, load_chip
from npusim.chip.schema import find
from npusim.cli import make_parser
from npusim.explore.sweep import METRICS
from npusim.explore.sweep.experiment import ExperimentFile
from npusim.frontends.workload import WorkloadFile

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE_CHIP = "ascend910a"
_README = re.compile(r"^<!-- readme: (.+) -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code, and the notebooks."""
    pages: dict[str, str | bytes] = {
        "reference/cli.md": cli_page(),
        "reference/chip.md": chip_page(),
        "reference/workload.md": workload_page(),
        "reference/experiment.md": experiment_page(),
    }
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        pages |= notebook_files(path)
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the README's sections where a page asks for them."""
    return _README.sub(lambda found: readme_section(found[1]), markdown)


def readme_section(heading: str) -> str:
    """The text below a heading of the README; a heading that is not there is an error."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sections = dict(part.split("\n", 1) for part in readme.split("\n## ")[1:])
    return sections[heading].replace("](docs/", "](").strip()


# -- commands ------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with its options."""
    parser = make_parser()
    parts = ["# Commands", parser.description or "", *_commands(parser)]
    return "\n\n".join(parts)


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The commands of a parser, those of commands among them; a section each."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            yield f"## {command.prog}"
            text = command.description or helps[name]
            yield f"{text[:1].upper()}{text[1:].rstrip('.')}."
            usage = " ".join(command.format_usage().removeprefix("usage: ").split())
            usage = usage.replace("[-h] ", "").removesuffix(" [-h]")
            yield f"```text\n{usage}\n```"
            yield from _options(command)
            if command.epilog:
                yield command.epilog
            yield from _commands(command)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A table for every group of options."""
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        rows = [
            (
                f"`{formatter._format_action_invocation(a)}`",
                formatter._expand_help(a) if a.help else "",
            )
            for a in group._group_actions
            if not isinstance(a, argparse._HelpAction | argparse._SubParsersAction)
        ]
        if rows:
            yield _table((group.title or "").removeprefix("positional "), "", rows)


# -- chip files ----------------------------------------------------------------------------


def chip_page() -> str:
    """Every key of a chip, by section."""
    intro = (
        f"# Chip files\n\nA chip is a YAML file. `extends: {EXAMPLE_CHIP}` takes all values of "
        "another chip and changes some. A value is a number, a text with a unit (`1.2 TB/s`, "
        "`64 KiB`), or a section with `value`, `grade` (documented, measured, inferred or assumed) "
        "and `source`. Keys are written with dots where a command or `load_chip` changes one: "
        "`--set hbm.bandwidth=2.4TB/s`.\n\n"
        f"The last columns show the {EXAMPLE_CHIP} and how well each of its values is known; "
        f"`npusim chip show {EXAMPLE_CHIP} --sources` names the sources."
    )
    return "\n\n".join([intro, *_sections(ChipSpec, "")])


def _sections(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """A section for a part and each part in it: what it says of itself, its own keys."""
    shown = {row.key: row for row in chip_rows(load_chip(EXAMPLE_CHIP))}
    yield f"## {prefix.rstrip('.') or 'The file'}"
    yield " ".join((model.__doc__ or "").split()) if prefix else "Keys outside of any section."
    rows = []
    for field, info in model.model_fields.items():
        key = f"{prefix}{field}"
        entry = find(key)
        if entry is None or entry.children:
            continue
        below = [row for name, row in shown.items() if name == key or name.startswith(f"{key}.")]
        values = [
            row.value if row.key == key else f"{row.key.removeprefix(key)[1:]}: {row.value}"
            for row in below
        ]
        allowed = entry.allowed + ("" if info.is_required() else "; may be left out")
        grades = ", ".join(dict.fromkeys(row.grade for row in below))
        rows.append((f"`{key}`", allowed, "; ".join(values), grades))
    if prefix == "":
        rows.append(("`extends`", "the name of a chip, or the path of a chip's file", "", ""))
    if rows:
        yield _table("key", "allowed", rows, EXAMPLE_CHIP, "grade")
    for field, info in model.model_fields.items():
        part = _part(info.annotation)
        if part is not None:
            yield from _sections(part, f"{prefix}{field}.")


def _part(annotation: object) -> type[BaseModel] | None:
    """The section that a field holds, if it holds one."""
    for kind in (annotation, *typing.get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


# -- workload files ------------------------------------------------------------------------


def workload_page() -> str:
    """Every key of a workload, and an example."""
    schema = WorkloadFile.model_json_schema()
    rows = []
    for key, what in schema["properties"].items():
        default = "needed" if key in schema["required"] else json.dumps(what.get("default"))
        rows.append((f"`{key}`", what["description"], _kind(what), f"`{default}`"))
    example = (ROOT / "workloads" / "bert-base.yaml").read_text(encoding="utf-8")
    return (
        "# Workload files\n\nA workload names a model and how it is run. `npusim workloads` lists "
        "those that come with npusim; a file of your own is given by its path, "
        "`npusim run mine.yaml`.\n\n"
        + _table("key", "what", rows, "allowed", "if left out")
        + f"\n\n`workloads/bert-base.yaml`:\n\n```yaml\n{example}```\n"
    )


# -- experiment files ----------------------------------------------------------------------


def experiment_page() -> str:
    """Every key of an experiment, by section, and the metrics."""
    metrics = [(f"`{name}`", m.unit, m.text) for name, m in METRICS.items()]
    return "\n\n".join(
        [
            "# Experiment files\n\n`npusim sweep mine.yaml` runs one; [experiments]"
            "(../experiments.md) says how, with an example. What may be a list is an axis.",
            *_experiment_section(ExperimentFile, ""),
            "## metrics\n\nWhat `metrics` may name.",
            _table("metric", "unit", metrics, "what"),
        ]
    )


def _experiment_section(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """The keys of a section, then the sections in it."""
    yield f"## {prefix.rstrip('.') or 'The file'}"
    yield " ".join((model.__doc__ or "").split())
    schema = model.model_json_schema()
    rows, parts = [], []
    for key, what in schema["properties"].items():
        default = what.get("default")
        part = _part(model.model_fields[key].annotation) or _listed(model, key)
        left_out = "`needed`" if key in schema.get("required", ()) else f"`{json.dumps(default)}`"
        if part is not None:
            parts.append((part, f"{prefix}{key}."))
            left_out = left_out if left_out == "`needed`" else ""
        allowed = "a section" if part and "items" not in what else _kind(what)
        rows.append((f"`{prefix}{key}`", what["description"], allowed, left_out))
    yield _table("key", "what", rows, "allowed", "if left out")
    for part, name in parts:
        yield from _experiment_section(part, name)


def _listed(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The section that a list's items are, or may be."""
    for kind in typing.get_args(model.model_fields[key].annotation):
        part = _part(kind)
        if part is not None:
            return part
    return None


def _kind(schema: dict[str, Any]) -> str:
    """What a JSON schema allows, in words."""
    if "$ref" in schema:
        return "a section"
    if "enum" in schema:
        return ", ".join(value or '""' for value in schema["enum"])
    if schema.get("type") == "boolean":
        return "true or false"
    if "anyOf" in schema:
        return " or ".join(_kind(s) for s in schema["anyOf"] if s.get("type") != "null")
    if schema["type"] == "integer":
        least = f" of at least {schema['minimum']}" if "minimum" in schema else ""
        return f"a whole number{least}"
    if schema["type"] == "array":
        return f"a list, each {_kind(schema['items'])}" if "items" in schema else "a list"
    if schema["type"] == "object":
        values = schema["additionalProperties"]
        return "keys and values" if values is True else f"names, each with {_kind(values)}"
    return "text"


# -- notebooks -----------------------------------------------------------------------------


def notebook_files(path: Path) -> dict[str, str | bytes]:
    """A notebook's page and its pictures."""
    parts: list[str] = []
    files: dict[str, str | bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/png" in output["data"]:
                name = f"{path.stem}-{len(files) + 1}.png"
                files[f"notebooks/{name}"] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![]({name})")
    where = f"\n\n*`npusim notebooks` copies this page as `{path.name}`, to be run and changed.*"
    first, _, rest = parts[0].partition("\n")
    files[f"notebooks/{path.stem}.md"] = "\n\n".join([first + where + "\n" + rest, *parts[1:]])
    return files


def _table(first: str, second: str, rows: list[tuple[str, ...]], *more: str) -> str:
    """A Markdown table; in code a bar stands as it is."""
    head = (first, second, *more)
    lines = [head, ("---",) * len(head), *rows]
    escaped = [[c if c.startswith("`") else c.replace("|", "\\|") for c in line] for line in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)
