"""Every operator against ONNX's own node test cases."""

from __future__ import annotations

import re
from collections import Counter

from backend_cases import cases

from npusim.errors import UnsupportedError
from npusim.ops import get_operator, operator_names

#: Cases that npusim does not run, by pattern, and why.
UNSUPPORTED = {}


def test_node_cases() -> None:
    found = cases()
    failed: list[str] = []
    passed = 0
    for case in found:
        reason = next((r for p, r in UNSUPPORTED.items() if re.match(p, case.name)), None)
        try:
            case.run()
        except UnsupportedError as e:
            if reason is None:
                failed.append(f"{case.name}: {e}")
        except Exception as e:
            failed.append(f"{case.name}: {e}")
        else:
            passed += 1
            assert reason is None, f"{case.name} passes: remove it from UNSUPPORTED"
    assert not failed, f"{len(failed)} of {len(found)} fail:\n" + "\n".join(failed[:20])
    assert passed >= 1000 and passed / len(found) > 0.95


def test_every_operator_has_a_case() -> None:
    covered = Counter(op for case in cases() for op in case.op_types)
    inserted = {"TransData", "MatMulV2", "ConvConv"}  # by the compiler: no operator of ONNX
    cann = (".training_", ".cann_")  # modules of operators that ONNX does not have
    onnx = [
        op for op in operator_names() if not any(m in get_operator(op).__module__ for m in cann)
    ]
    missing = [op for op in onnx if not covered[op] and op not in inserted]
    assert not missing
