"""CANN's operator types, as operators of npusim: the ONNX name, inputs and attributes.

What is not listed is looked up under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from npusim.acl.constants import DTYPES
from npusim.ir import TensorType
from npusim.runtime import Code, InvalidUseError

Attrs = dict[str, Any]


@dataclass(frozen=True)
class OpCall:
    """An operator as it is called: its inputs' types, in order, and its attributes."""

    op_type: str
    inputs: tuple[TensorType, ...]
    attrs: Attrs

    def take(self, *names: str) -> Attrs:
        """The attributes of these names; others are an error.

        Raises:
            InvalidUseError: there are others.
        """
        others = sorted(self.attrs.keys() - set(names))
        if others:
            raise InvalidUseError(
                Code.OP_ATTR_NOT_MATCH,
                f"attribute {others[0]!r} of {self.op_type}",
                ", ".join(names) or "no attributes",
                "leave it out",
            )
        return self.attrs


@dataclass(frozen=True)
class OnnxOp:
    """The operator that does it.

    Attributes:
        swaps: inputs whose last two dimensions are exchanged before.
    """

    name: str
    attrs: Attrs
    swaps: tuple[int, ...] = ()


_RULES: dict[str, Callable[[OpCall], OnnxOp]] = {}


def op_type(*names: str) -> Callable[[Callable[[OpCall], OnnxOp]], Callable[[OpCall], OnnxOp]]:
    """Decorator: how CANN's operators of these names are done."""

    def register(rule: Callable[[OpCall], OnnxOp]) -> Callable[[OpCall], OnnxOp]:
        for name in names:
            _RULES[name] = rule
        return rule

    return register


def onnx_op(call: OpCall) -> OnnxOp:
    """The operator that does a call.

    Raises:
        InvalidUseError: attributes that it does not have.
    """
    rule = _RULES.get(call.op_type)
    return OnnxOp(call.op_type, call.attrs) if rule is None else rule(call)


_SAME = {
    "RealDiv": "Div",
    "Maximum": "Max",
    "Minimum": "Min",
    "AddN": "Sum",
    "LeakyReLU": "LeakyRelu",
    "FloorMod": "Mod",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "LogicalNot": "Not",
    "GreaterEqual": "GreaterOrEqual",
    "LessEqual": "LessOrEqual",
    "Select": "Where",
}


@op_type(*_SAME)
def _same(call: OpCall) -> OnnxOp:
    return OnnxOp(_SAME[call.op_type], {k: v for k, v in call.attrs.items() if k != "N"})


@op_type("SoftmaxV2", "LogSoftmaxV2")
def _softmax(call: OpCall) -> OnnxOp:
    axes = call.take("axes").get("axes", [-1])
    if len(axes) != 1:
        raise InvalidUseError(
            Code.OP_ATTR_NOT_MATCH, f"axes {axes} of {call.op_type}", "one axis", "choose one"
        )
    return OnnxOp(call.op_type.removesuffix("V2"), {"axis": int(axes[0])})


@op_type("MatMul", "MatMulV2")
def _matmul(call: OpCall) -> OnnxOp:
    attrs = call.take("transpose_x1", "transpose_x2", "offset_x")
    return OnnxOp("MatMul", {}, _swaps(attrs, "transpose_x1", "transpose_x2"))


@op_type("BatchMatMul", "BatchMatMulV2")
def _batch_matmul(call: OpCall) -> OnnxOp:
    attrs = call.take("adj_x1", "adj_x2", "offset_x")
    return OnnxOp("MatMul", {}, _swaps(attrs, "adj_x1", "adj_x2"))


def _swaps(attrs: Attrs, *names: str) -> tuple[int, ...]:
    return tuple(i for i, name in enumerate(names) if attrs.get(name))


@op_type("Cast")
def _cast(call: OpCall) -> OnnxOp:
    number = call.take("dst_type", "truncate").get("dst_type", -1)
    if number not in DTYPES:
        raise InvalidUseError(
            Code.OP_ATTR_NOT_MATCH, f"dst_type {number} of Cast", "an aclDataType", "set dst_type"
        )
    return OnnxOp("Cast", {"to": DTYPES[number]})


@op_type("Conv2D")
def _conv2d(call: OpCall) -> OnnxOp:
    attrs = call.take("strides", "pads", "dilations", "groups", "data_format", "offset_x")
    if attrs.get("data_format", "NCHW") != "NCHW":
        raise InvalidUseError(
            Code.FORMAT_NOT_MATCH, f"data_format {attrs['data_format']}", "NCHW", "transpose it"
        )
    top, bottom, left, right = attrs.get("pads", [0, 0, 0, 0])
    return OnnxOp(
        "Conv",
        {
            "strides": list(attrs.get("strides", [1, 1, 1, 1])[2:]),
            "pads": [top, left, bottom, right],
            "dilations": list(attrs.get("dilations", [1, 1, 1, 1])[2:]),
            "group": int(attrs.get("groups", 1)),
        },
    )


@op_type("Transpose", "TransposeD")
def _transpose(call: OpCall) -> OnnxOp:
    return OnnxOp("Transpose", {"perm": list(_required(call, "perm"))})


@op_type("ConcatD", "ConcatV2D")
def _concat(call: OpCall) -> OnnxOp:
    return OnnxOp("Concat", {"axis": int(_required(call, "concat_dim", "N"))})


def _required(call: OpCall, name: str, *others: str) -> Any:
    attrs = call.take(name, *others)
    if name not in attrs:
        raise InvalidUseError(
            Code.OP_ATTR_NOT_MATCH, f"{call.op_type} without {name!r}", f"{name} set", "set it"
        )
    return attrs[name]


def known_types() -> Sequence[str]:
    """CANN's names that have a rule of their own."""
    return sorted(_RULES)
