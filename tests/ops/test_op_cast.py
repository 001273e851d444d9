"""A Cast with operators fused behind it still rounds to its own type."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, EpilogueStep, Node, TensorType
from npusim.ops import compute_node


def test_rounds_to_its_own_type_not_to_the_chains() -> None:
    back = EpilogueStep("Cast", None, (("to", "float32"),))
    node = Node("n", "Cast", ("x",), ("y",), {"to": "float16"}, (EpilogueStep("Exp"), back))
    x = np.linspace(0, 4, 1000, dtype=np.float32)
    (y,) = compute_node(node, [x], [TensorType(x.shape, DType.FLOAT32)])
    rounded = x.astype(np.float16).astype(np.float32)
    assert (rounded != x).any()
    np.testing.assert_array_equal(y, np.exp(rounded))
