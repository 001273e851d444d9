"""What runs an operator, and how many cases of ONNX's backend test suite pass.

`conformance.json` is written by `tests/onnx_suite.py`; `tests/test_onnx_backend.py` keeps it true.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

#: Operators whose results are known when a program is compiled.
CONSTANTS = ("Constant", "ConstantOfShape", "EyeLike", "Range", "Shape", "Size")
CONFORMANCE_FILE = Path(__file__).with_name("conformance.json")


@dataclass(frozen=True)
class Count:
    """Cases that pass, of all."""

    passed: int
    cases: int

    def __str__(self) -> str:
        return f"{self.passed:,} of {self.cases:,}"


@dataclass(frozen=True)
class Conformance:
    """The outcome of the suite. A case that does not pass is unsupported; none is wrong.

    Attributes:
        suite: name and version of the suite.
        kinds: groups of the suite; operators: those of its group "node".
        unsupported: group → case → why.
    """

    suite: str
    kinds: Mapping[str, Count]
    operators: Mapping[str, Count]
    unsupported: Mapping[str, Mapping[str, str]]


@cache
def conformance() -> Conformance:
    """The recorded outcome."""
    data = json.loads(CONFORMANCE_FILE.read_text(encoding="utf-8"))
    return Conformance(
        data["suite"],
        {k: Count(*v) for k, v in data["kinds"].items()},
        {k: Count(*v) for k, v in data["operators"].items()},
        data["unsupported"],
    )


def runs_on(op_type: str) -> str:
    """What runs an operator; '' when npusim does not have it."""
    from onnx import defs

    import npusim.explore.replay  # registers the builders of launches
    import npusim.frontends.onnx_importer  # noqa: F401  (registers the rules)
    from npusim.compiler import becomes, kernel_of
    from npusim.explore.replay.launches import kernels_of
    from npusim.frontends.onnx_control import CONTROL
    from npusim.frontends.onnx_opset import has_rule, rewrites_all
    from npusim.frontends.onnx_training import DIALECT as TRAINING
    from npusim.ops import has_operator

    if op_type in CONSTANTS:
        return "no task: a constant"
    kernel = kernel_of(becomes(op_type)) if has_operator(op_type) else ""
    if kernel:
        return "no task: a view" if kernel == "view" else f"AI Core: {kernel}"
    if op_type in CONTROL:
        return "unrolled at import"
    if rewrites_all(op_type) or op_type in TRAINING.rewrites:
        return "the operators of its body"
    if kernels_of(op_type):
        return f"AI Core, in replays: {', '.join(kernels_of(op_type))}"
    if has_operator(op_type):
        return "AI CPU"
    if has_rule(op_type):
        return "its newer form"
    if not defs.has(op_type):
        return ""
    schema: Any = defs.get_schema(op_type)
    has_body = schema.has_function or schema.has_context_dependent_function
    return "the operators of its body" if has_body else ""
