"""Recurrent networks over whole sequences: LSTM, GRU, RNN (`recurrent_cells` says what a step is).

CANN has them as DynamicRNN and DynamicGRUV2; here the compiler unrolls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.recurrent_cells import GATES, unrolled
from npusim.ops.registry import (
    Arrays,
    Attrs,
    Inputs,
    Operator,
    Types,
    Work,
    get_operator,
    operator,
    schema,
)

_ATTRS = schema(
    activations=None,
    activation_alpha=None,
    activation_beta=None,
    clip=None,
    direction="forward",
    hidden_size=None,
    layout=0,
)


class Numpy:
    """Operators on arrays, at once (an `Algebra`)."""

    def op(
        self, op_type: str, *inputs: np.ndarray, attrs: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """The result of an operator."""
        cls = get_operator(op_type)
        merged = {**cls.attrs, **(attrs or {})}
        types = [self.type(a) for a in inputs]
        out = cls.infer(Inputs(tuple(types), inputs), merged, 1)
        return cls.compute(inputs, merged, out)[0]

    def split(self, x: np.ndarray, axis: int, parts: int) -> list[np.ndarray]:
        """x in equal parts."""
        return np.split(x, parts, axis)

    def constant(self, value: np.ndarray) -> np.ndarray:
        """The array itself."""
        return value

    def type(self, x: np.ndarray) -> TensorType:
        """Its shape and element type."""
        return TensorType(x.shape, DType.of(x.dtype))


class _Recurrent(Operator):
    """X [T, B, I], W [D, G·H, I], R [D, G·H, H], B [D, 2·G·H], lengths [B], initial states.

    Results: Y [T, D, B, H], then the last states [D, B, H]; `layout` 1 has the batch in front.
    """

    @classmethod
    def infer(cls, x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, w, r = x.type(0), x.type(1), x.type(2)
        ranks = len(t.shape) == len(w.shape) == len(r.shape) == 3
        check(ranks, f"X {t.shape}, W {w.shape}, R {r.shape}", "three dimensions each")
        directions, rows, hidden = r.shape
        wanted = 2 if attrs["direction"] == "bidirectional" else 1
        gates = GATES[cls.op_type]
        check(
            rows == gates * hidden and w.shape == (directions, rows, t.shape[2]),
            f"W {w.shape} and R {r.shape} for X {t.shape}",
            f"W [D, {gates}·H, I] and R [D, {gates}·H, H]",
        )
        check(directions == wanted, f"{directions} directions", f"{wanted}: {attrs['direction']}")
        steps, batch = t.shape[:2] if not attrs["layout"] else t.shape[1::-1]
        y, h = (steps, wanted, batch, hidden), (wanted, batch, hidden)
        if attrs["layout"]:
            y, h = (batch, steps, wanted, hidden), (batch, wanted, hidden)
        return [TensorType(s, t.dtype) for s in (y, h, h)][:n_outputs]

    @classmethod
    def compute(cls, x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return unrolled(Numpy(), cls.op_type, x, attrs)[: len(out)]

    @classmethod
    def work(cls, x: Types, out: Types, attrs: Attrs) -> Work:
        t, w, r = x[:3]
        assert t is not None and w is not None and r is not None
        points = t.shape[0] * t.shape[1]
        return Work(points * (w.size + r.size), 8 * points * r.shape[0] * r.shape[1])


@operator("RNN")
class RNN(_Recurrent):
    """h' = f(x·W' + h·R' + b)."""

    attrs = _ATTRS


@operator("GRU")
class GRU(_Recurrent):
    """Gates z, r and a candidate h; `linear_before_reset`: r scales h·R' + b, not h."""

    attrs = schema(**_ATTRS, linear_before_reset=0)


@operator("LSTM")
class LSTM(_Recurrent):
    """Gates i, o, f and a candidate c, with peepholes; `input_forget`: f = 1 - i."""

    attrs = schema(**_ATTRS, input_forget=0)
