"""ONNX's backend test suite through `onnx.backend.base`, and the files that state its outcome.

To write the files anew: PYTHONPATH=.:tests .venv/bin/python tests/onnx_suite.py
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from npusim.conformance import CONFORMANCE_FILE, runs_on
from npusim.errors import ModelError, UnsupportedError
from npusim.onnx_backend import backend

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
README = Path(__file__).parent.parent / "README.md"
PAGE = Path(__file__).parent.parent / "docs" / "conformance.md"
COMMAND = "PYTHONPATH=.:tests .venv/bin/python tests/onnx_suite.py"
#: Values that are no tensors; their error is a ModelError, about the file and not an operator.
_NO_TENSORS = re.compile("is a (sequence|optional|map|sparse_tensor)_type")

Unsupported = Mapping[str, Mapping[str, str]]  #: group → case → why


@cache
def cases(kind: str) -> tuple[TestCase, ...]:
    """The cases of a group, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(sorted(load_model_tests(kind=kind), key=lambda case: case.name))


def outcome(case: TestCase) -> str:
    """'' when the case passes, else why npusim does not support it.

    Raises:
        AssertionError: a wrong result. Any other error is a failure too.
    """
    try:
        model = case.model or onnx.load(Path(case.model_dir or "", "model.onnx"))
        prepared = backend.prepare(model)
        for inputs, expected in _data(case, model):
            got = prepared.run(inputs)
            with np.errstate(all="ignore"):
                Runner.assert_similar_outputs(expected, list(got), case.rtol, case.atol)
    except UnsupportedError as e:
        return e.what
    except ModelError as e:
        if not _NO_TENSORS.search(e.what):
            raise
        return e.what
    return ""


def _data(case: TestCase, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and expected outputs."""
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_array(i) for i in inputs], [_array(o) for o in outputs]
        return
    for folder in sorted(Path(case.model_dir or "").glob("test_data_set_*")):
        yield (
            _files(folder, "input", model.graph.input),
            _files(folder, "output", model.graph.output),
        )


def _files(folder: Path, role: str, values: Any) -> list[Any]:
    found = []
    for i in range(len(list(folder.glob(f"{role}_*.pb")))):
        if not values[i].type.HasField("tensor_type"):
            found.append(None)  # refused before it is needed
            continue
        tensor = onnx.TensorProto()
        tensor.ParseFromString((folder / f"{role}_{i}.pb").read_bytes())
        found.append(numpy_helper.to_array(tensor))
    return found


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


# What the files say.


@cache
def operator_of() -> dict[str, str]:
    """Case of the group "node" → the operator it is about.

    The suite also has most cases with their operator expanded to its body: about the same one.
    """
    made = {c.name: c.model for c in cases("node")}
    found = {}
    for name in made:
        model = made[re.sub("_expanded.*", "", name)]
        (op,) = {n.op_type for n in model.graph.node} - {"Constant"} or {"Constant"}
        found[name] = op
    return found


def record(unsupported: Unsupported) -> str:
    """The text of `npusim/conformance.json`."""
    total = Counter(operator_of().values())
    missed = Counter(operator_of()[name] for name in unsupported["node"])
    sizes = {kind: len(cases(kind)) for kind in KINDS}
    data = {
        "suite": f"onnx {onnx.__version__}, onnx.backend.test",
        "kinds": {k: [n - len(unsupported[k]), n] for k, n in sizes.items()},
        "operators": {op: [n - missed[op], n] for op, n in sorted(total.items())},
        "unsupported": {k: dict(sorted(unsupported[k].items())) for k in KINDS},
    }
    lines = json.dumps(data, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", lines) + "\n"


def page(unsupported: Unsupported) -> str:
    """The text of `docs/conformance.md`."""
    data = json.loads(record(unsupported))
    by_operator: dict[str, Counter[str]] = {}
    for name, why in unsupported["node"].items():
        by_operator.setdefault(operator_of()[name], Counter())[_short(why)] += 1
    rows = [
        f"| {op} | {passed} | {n} | {runs_on(op)} | "
        + "; ".join(f"{k} {why}" for why, k in sorted(by_operator.get(op, Counter()).items()))
        + " |"
        for op, (passed, n) in data["operators"].items()
    ]
    return "\n".join(
        [
            "# Conformance",
            "",
            f"The backend test suite of {data['suite'].split(',')[0]} through "
            "`onnx.backend.base.Backend` (`npusim.onnx_backend`),",
            "on the chip `ascend910b2`, in the models' own types, nothing fused. Every case",
            "passes or is refused with an error that names what is unsupported; none gives a wrong",
            "result. The suite's own comparison and tolerances decide (two units in the last place",
            "for bfloat16).",
            "",
            "| group | pass | unsupported | cases |",
            "| --- | --- | --- | --- |",
            *(f"| {k} | {p:,} | {n - p:,} | {n:,} |" for k, (p, n) in data["kinds"].items()),
            "",
            "Strings, sequences, optional values, maps and `ai.onnx.ml` stay unsupported: no graph",
            "of an NPU carries them. A case that the suite gives with its operator expanded to its",
            "body counts for the operator.",
            "",
            "| operator | pass | cases | runs on | unsupported, and why |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
            "This page and `npusim/conformance.json` are written by",
            "",
            "```bash",
            COMMAND,
            "```",
            "",
            "and `tests/test_onnx_backend.py` keeps them true.",
            "",
        ]
    )


def readme(text: str, unsupported: Unsupported) -> str:
    """The README with its sentence on the suite renewed."""
    kinds = json.loads(record(unsupported))["kinds"]
    passed, n = kinds["node"]
    rest = [sum(column) for column in zip(*(kinds[k] for k in KINDS[1:]), strict=True)]
    sentence = (
        f"ONNX models: {passed:,} of the {n:,} node cases of ONNX's own backend tests pass, and\n"
        f"{rest[0]:,} of the {rest[1]:,} others; the rest is refused by name, and none gives a "
        "wrong result\n([docs/conformance.md](docs/conformance.md), by operator). What is imported "
        "how, dynamic shapes,\ntypes and limits: [docs/onnx.md](docs/onnx.md).\n"
    )
    start, end = "<!-- Conformance -->\n", "<!-- end -->"
    head, tail = text.split(start)
    return head + start + sentence + end + tail.split(end, 1)[1]


def _short(why: str) -> str:
    """Why, without the names of nodes and tensors."""
    why = re.sub(r"( at| of)? ?node '[^']*'( \(\w+\))?:? ?", " ", why)
    why = re.sub(r"(input|tensor) '[^']*'", "a value", why).split("\n")[0]
    return " ".join(why.replace("|", "/").split())


def main() -> None:
    """Run the suite and write the files."""
    unsupported: dict[str, dict[str, str]] = {}
    for kind in KINDS:
        found = {case.name: outcome(case) for case in cases(kind)}
        unsupported[kind] = {name: why for name, why in found.items() if why}
        print(f"{kind}: {len(found) - len(unsupported[kind])} of {len(found)} pass")
    CONFORMANCE_FILE.write_text(record(unsupported), encoding="utf-8")
    PAGE.write_text(page(unsupported), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    README.write_text(readme(text, unsupported), encoding="utf-8")


if __name__ == "__main__":
    main()
