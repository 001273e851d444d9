"""TransData: another device layout of the same tensor. On logical arrays, the identity."""

from __future__ import annotations

import numpy as np

from npusim.ops.registry import Arrays, Attrs, Operator, Types, Work, operator


@operator("TransData")
class TransData(Operator):
    """A layout change (inserted by the compiler; CANN's name)."""

    moves_data = True

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        assert x[0] is not None
        return [x[0]]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work()
