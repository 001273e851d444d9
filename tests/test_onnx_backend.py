"""ONNX's own backend tests: every case passes or is unsupported by name; none is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_suite import COMMAND, KINDS, PAGE, README, cases, outcome, page, readme, record

import npusim.onnx_backend as face
from npusim.conformance import CONFORMANCE_FILE, conformance
from npusim.errors import ModelError, UnsupportedError

PARTS = 16  #: of the largest group, to share among processes


def parts() -> list[tuple[str, int, int]]:
    """(group, part, parts)."""
    return [("node", i, PARTS) for i in range(PARTS)] + [(kind, 0, 1) for kind in KINDS[1:]]


@pytest.mark.parametrize(("kind", "part", "of"), parts())
def test_the_suite(kind: str, part: int, of: int) -> None:
    recorded = conformance().unsupported[kind]
    wrong, changed = [], []
    for case in cases(kind)[part::of]:
        try:
            why = outcome(case)
        except Exception as e:  # whatever it is, the case neither passes nor is unsupported
            wrong.append(f"{case.name}: {type(e).__name__}: {e}")
            continue
        if why != recorded.get(case.name, ""):
            changed.append(f"{case.name}: {why or 'passes'}")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:20])
    assert not changed, f"run {COMMAND}; {len(changed)} changed:\n" + "\n".join(changed[:20])


def test_the_files_say_what_the_suite_gives() -> None:
    unsupported = conformance().unsupported
    assert CONFORMANCE_FILE.read_text(encoding="utf-8") == record(unsupported), COMMAND
    assert PAGE.read_text(encoding="utf-8") == page(unsupported), COMMAND
    text = README.read_text(encoding="utf-8")
    assert text == readme(text, unsupported), COMMAND


def add() -> onnx.ModelProto:
    """y = a + b, of any length."""
    a, b, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "aby")
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", [a, b], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def test_the_interface() -> None:
    one, two = np.ones(3, np.float32), np.full(3, 2, np.float32)
    prepared = face.prepare(add())
    assert prepared.run([one, two]).y.tolist() == [3, 3, 3]
    assert prepared.run({"b": two[:1], "a": one[:1]})[0].tolist() == [3]  # another length
    assert prepared.result is not None and prepared.result.timeline.ops
    assert face.run_model(add(), [one, one])[0].tolist() == [2, 2, 2]
    assert face.supports_device("CPU") and face.supports_device("ascend910a:0")
    assert not face.supports_device("TPU")


def test_what_is_refused() -> None:
    proto = add()
    proto.graph.node[0].op_type = "Sine"
    with pytest.raises(UnsupportedError, match="operator 'Sine'"):
        face.prepare(proto)
    with pytest.raises(ModelError, match="1 arrays"):
        face.prepare(add()).run([np.ones(3, np.float32)])
