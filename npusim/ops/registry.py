"""The operator registry: each operator once, with its schema, shape rule, semantics and work.

An operator is a subclass of `Operator`, registered by the `@operator` decorator:

    @operator("Relu")
    class Relu(Operator):
        elementwise = True

        @staticmethod
        def compute(x, attrs, out):
            return [np.maximum(x[0], 0)]

`infer` and `compute` see the ONNX inputs in order; an absent optional input is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npusim.errors import GraphError, ModelError, NpusimError, UnsupportedError, nearest
from npusim.ir import DType, Node, TensorType, convert
from npusim.ir.narrow import is_narrow, widened
from npusim.ops.half import to_fp16, to_fp32

Attrs = Mapping[str, Any]
Arrays = Sequence[Any]  #: numpy arrays, None where an optional input is absent
Types = Sequence[Any]  #: TensorTypes, None where an optional input is absent


@dataclass(frozen=True)
class Work:
    """What an operator computes, independent of any chip.

    Attributes:
        macs: multiply-accumulates for the cube (0 for others).
        vector_ops: elementary vector operations (one per element and pass).
    """

    macs: int = 0
    vector_ops: int = 0

    @property
    def flops(self) -> int:
        """Two per MAC, one per vector operation."""
        return 2 * self.macs + self.vector_ops


@dataclass(frozen=True)
class Inputs:
    """What a shape rule sees: the types of the inputs and, where known, their values.

    `values` may be computed as they are asked for.
    """

    types: tuple[TensorType | None, ...]
    values: Sequence[np.ndarray | None]

    def type(self, i: int) -> TensorType:
        """Type of input i, which must be present.

        Raises:
            GraphError: it is absent.
        """
        t = self.types[i] if i < len(self.types) else None
        if t is None:
            raise GraphError(
                f"input {i} is absent ({len(self.types)} inputs given)",
                "every input that the operator requires",
                "repair the model, or export it again",
            )
        return t

    def has(self, i: int) -> bool:
        """True when optional input i is given."""
        return i < len(self.types) and self.types[i] is not None

    def value(self, i: int) -> np.ndarray | None:
        """Value of input i when it is known before the run, else None."""
        return self.values[i] if i < len(self.values) else None


def schema(**defaults: Any) -> dict[str, Any]:
    """Attributes of an operator and their defaults; `...` marks a required one."""
    return defaults


class Operator:
    """One operator. Subclasses override `compute`, and `infer`/`work` where the default is wrong.

    Class attributes:
        attrs: every attribute name with its default (ONNX names); `...` marks a required one.
        elementwise: output element i depends only on (broadcast) input elements i; the same
            numpy code then serves any common memory layout.
        moves_data: the operator only moves elements; `compute` then sees them as stored.
        data_inputs: inputs whose elements the shape rule asks for, though they are data (NonZero).
            All others that it asks for are parameters, which a program is compiled for.
    """

    op_type: ClassVar[str] = ""
    attrs: ClassVar[dict[str, Any]] = {}
    elementwise: ClassVar[bool] = False
    moves_data: ClassVar[bool] = False
    data_inputs: ClassVar[tuple[int, ...]] = ()

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        """Types of the outputs. Default: broadcast of all inputs, dtype of the first."""
        shape = broadcast(*(t.shape for t in x.types if t is not None))
        return [TensorType(shape, x.type(0).dtype)] * n_outputs

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        """Outputs from inputs, by numpy.

        Float inputs arrive as float32 (float64 stays), whatever they are stored in, int4 and
        int2 as int8 (uint8 if unsigned); results are rounded to the stored type by the caller.
        `out` gives the output types.
        """
        raise UnsupportedError("compute of an abstract operator", "-", "implement compute")

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        """Work count. Default: one vector operation per output element."""
        return Work(vector_ops=sum(t.size for t in out))


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all of `shapes` broadcast to.

    Raises:
        GraphError: they do not.
    """
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except (RuntimeError, ValueError):  # RuntimeError: too many dimensions
        raise GraphError(
            f"shapes {', '.join(map(str, shapes))} do not broadcast",
            "dimensions that are equal, or 1, counted from the last",
            "correct the shapes of the model or of its inputs",
        ) from None


_OPERATORS: dict[str, type[Operator]] = {}


def operator(op_type: str) -> Callable[[type[Operator]], type[Operator]]:
    """Class decorator: register an operator under its ONNX (or CANN) name.

    Raises:
        ValueError: the name is taken.
    """

    def register(cls: type[Operator]) -> type[Operator]:
        if op_type in _OPERATORS:
            raise ValueError(f"operator {op_type!r} is registered twice")
        cls.op_type = op_type
        _OPERATORS[op_type] = cls
        return cls

    return register


def get_operator(op_type: str, node: str = "") -> type[Operator]:
    """The operator of that name.

    Raises:
        UnsupportedError: npusim has no such operator; names the node and the nearest match.
    """
    found = _OPERATORS.get(op_type)
    if found is None:
        near = nearest(op_type, _OPERATORS)
        hint = f"did you mean {near}? " if near else ""
        raise UnsupportedError(
            f"operator {op_type!r}" + (f" at node {node!r}" if node else ""),
            "the operators listed by `npusim ops`",
            hint + "rewrite the model with supported operators, or add one in npusim/ops/",
        )
    return found


def operator_names() -> list[str]:
    """All registered operators, sorted."""
    return sorted(_OPERATORS)


def attributes(node: Node) -> dict[str, Any]:
    """The node's attributes with the operator's defaults filled in.

    Raises:
        UnsupportedError: a required attribute is missing, or one is unknown.
    """
    op = get_operator(node.op_type, node.name)
    for key in node.attrs:
        if key not in op.attrs:
            raise UnsupportedError(
                f"attribute {key!r} of {node.op_type} at node {node.name!r}",
                ", ".join(op.attrs) or "no attributes",
                "export the model with a newer opset, or extend the operator",
            )
    merged = {**op.attrs, **node.attrs}
    for key, value in merged.items():
        if value is ...:
            raise UnsupportedError(
                f"node {node.name!r} ({node.op_type}) lacks attribute {key!r}",
                "the attribute is required",
                "re-export the model",
            )
    return merged


def infer_node(
    node: Node, types: Sequence[TensorType | None], values: Sequence[np.ndarray | None]
) -> list[TensorType]:
    """Output types of a node; an error of the shape rule names the node."""
    op = get_operator(node.op_type, node.name)
    x = Inputs(tuple(types), values)
    merged = attributes(node)
    with _naming(node):
        found = op.infer(x, merged, len(node.outputs))
        if len(found) != len(node.outputs):
            raise UnsupportedError(
                f"{len(node.outputs)} outputs", f"{len(found)}", "drop the outputs beyond these"
            )
    return found


@contextmanager
def _naming(node: Node) -> Iterator[None]:
    """Errors of an operator's rules, with the node's name in front."""
    try:
        yield
    except NpusimError as e:
        where = f"node {node.name!r} ({node.op_type}): "
        raise type(e)(where + e.what, e.allowed, e.fix) from None


@contextmanager
def _computing(node: Node) -> Iterator[None]:
    """What numpy says about operands that do not fit (an index out of range), in three lines."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as e:
        raise ModelError(
            f"{type(e).__name__}: {' '.join(str(e).split())}",
            f"operands that {node.op_type} is defined for",
            "correct the inputs, or the model",
        ) from e


def has_operator(op_type: str) -> bool:
    """Whether npusim has an operator of that name."""
    return op_type in _OPERATORS


def widen(a: np.ndarray | None) -> np.ndarray | None:
    """fp16/bf16 → fp32: numpy's own fp16 arithmetic is 30 times slower, and rounds twice.

    Narrower types too become types that numpy computes in.
    """
    if a is not None and is_narrow(a.dtype):
        return widened(a)
    if a is None or a.dtype.itemsize != 2 or not DType.of(a.dtype).is_float:
        return a
    return to_fp32(a) if a.dtype == np.float16 else a.astype(np.float32)


def compute_node(
    node: Node, x: Sequence[np.ndarray | None], out: Sequence[TensorType]
) -> list[np.ndarray]:
    """Run a node (and its epilogue) in numpy; results have exactly the types `out`.

    Intermediate values of the epilogue stay in fp32, as on the chip.
    """
    op = get_operator(node.op_type, node.name)
    wide = list(x) if op.moves_data else [widen(a) for a in x]
    n_epilogue = {s.operand for s in node.epilogue if s.operand is not None}
    main = [a for i, a in enumerate(wide) if i not in n_epilogue]
    with (
        _naming(node),
        _computing(node),
        np.errstate(all="ignore"),
    ):  # inf and nan are results, as on the chip
        results = op.compute(main, attributes(node), out)
        for step in node.epilogue:
            step_op = get_operator(step.op_type, node.name)
            args = [widen(results[0])]
            if step.operand is not None:
                args.append(widen(wide[step.operand]))
            merged = {**step_op.attrs, **dict(step.attrs)}
            results = [step_op.compute(args, merged, out)[0], *results[1:]]
        return [round_to(r, t) for r, t in zip(results, out, strict=True)]


def round_to(a: np.ndarray, t: TensorType) -> np.ndarray:
    """`a` as an array of type `t`; finite values saturate in fp16, as on the chips."""
    a = np.asarray(a)
    if t.dtype is DType.FLOAT16 and a.dtype == np.float32:
        return to_fp16(a)
    return convert(a, t.dtype)
