"""ReduceElemwise: elementwise operators and reductions along rows, fused to one operator.

CANN calls such a kernel `te_fused_op_…`, after the operators that it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.ir import DType, Node, TensorType
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
    widen,
)


@dataclass(frozen=True, repr=False)
class FusedStep:
    """One operator inside.

    Attributes:
        op_type: its name.
        operands: values that it reads: inputs of the fused operator count from 0, and the results
            of the steps from there on.
        attrs: its attributes.
        axes: of a reduction, as its second input would give them; None: it has no such input.
    """

    op_type: str
    operands: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    axes: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        more = [f"{k}={v}" for k, v in self.attrs]
        more += [f"axes={self.axes}"] if self.axes is not None else []
        return f"{self.op_type}({', '.join([*map(str, self.operands), *more])})"

    def attributes(self) -> dict[str, Any]:
        """Attributes with the operator's defaults."""
        return {**get_operator(self.op_type).attrs, **dict(self.attrs)}

    def parameters(self) -> list[np.ndarray]:
        """The inputs that are no values of the program."""
        return [] if self.axes is None else [np.array(self.axes, np.int64)]


def operators_in(node: Node) -> list[str]:
    """The operators that a node holds, in order: its own and its epilogue's, or its steps'."""
    fused = node.op_type == ReduceElemwise.op_type
    own = [s.op_type for s in node.attrs["steps"]] if fused else [node.op_type]
    return [*own, *(s.op_type for s in node.epilogue)]


def types_of(inputs: Types, steps: tuple[FusedStep, ...]) -> list[TensorType]:
    """Types of the inputs and of every step's result.

    Raises:
        GraphError: the shapes of a step do not fit.
    """
    found = list(inputs)
    for step in steps:
        extra = step.parameters()
        types = [found[i] for i in step.operands]
        types += [TensorType(p.shape, DType.INT64) for p in extra]
        x = Inputs(tuple(types), (*[None] * len(step.operands), *extra))
        found += get_operator(step.op_type).infer(x, step.attributes(), 1)
    return found


@operator("ReduceElemwise")
class ReduceElemwise(Operator):
    """The result of the last of `steps`; what is between them stays in fp32, as on the chip."""

    attrs = schema(steps=...)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return types_of(x.types, attrs["steps"])[-1:]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        types = types_of([TensorType(a.shape, DType.of(a.dtype)) for a in x], attrs["steps"])
        values = list(x)
        for step in attrs["steps"]:
            operands = [widen(values[i]) for i in step.operands] + step.parameters()
            kind = types[len(values)]
            (result,) = get_operator(step.op_type).compute(operands, step.attributes(), [kind])
            values.append(result)
        return [values[-1]]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        types = types_of(x, attrs["steps"])
        total = 0
        for i, step in enumerate(attrs["steps"], len(x)):
            operands = [types[j] for j in step.operands]
            done = get_operator(step.op_type).work(operands, [types[i]], step.attributes())
            total += done.vector_ops
        return Work(vector_ops=total)
