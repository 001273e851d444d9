"""Functions: operators whose meaning is a body of other operators.

A model may bring its own (`ModelProto.functions`); ONNX defines many of its operators so. One that
npusim lacks is imported as its body: each node of it then is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npusim.frontends.onnx_opset import NEWEST
from npusim.frontends.onnx_scope import Scope
from npusim.frontends.onnx_tensor import ELEMENT_NUMBERS
from npusim.ir import TensorType

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto


@dataclass(frozen=True)
class Function:
    """A function at one call: its body, and the attributes that the body refers to."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Sequence[NodeProto]
    opsets: Mapping[str, int]
    attrs: Mapping[str, AttributeProto]


class Functions:
    """The functions that a model's nodes may call."""

    def __init__(self, model: ModelProto) -> None:
        self._local = {(f.domain, f.name): f for f in model.functions}
        self._kinds: dict[tuple[str, str, int], dict[str, int]] = {}

    def is_local(self, proto: NodeProto) -> bool:
        """Whether the model itself has a function of that name."""
        return (proto.domain, proto.op_type) in self._local

    def has(self, proto: NodeProto, scope: Scope) -> bool:
        """Whether the node calls a function."""
        schema = None if self.is_local(proto) else _schema(proto, scope)
        return self.is_local(proto) or (
            schema is not None and (schema.has_function or schema.has_context_dependent_function)
        )

    def attribute_kinds(self, proto: NodeProto, scope: Scope) -> dict[str, int]:
        """Attribute → its AttributeProto.AttributeType, for operators of ONNX."""
        key = (proto.domain, proto.op_type, scope.opsets.get(proto.domain, 0))
        if key not in self._kinds:
            schema = _schema(proto, scope)
            found = schema.attributes.items() if schema is not None else ()
            self._kinds[key] = {name: int(a.type.value) for name, a in found}
        return self._kinds[key]

    def of(self, proto: NodeProto, scope: Scope, types: Sequence[TensorType | None]) -> Function:
        """The function that a node calls, for operands of these types (`has` is true)."""
        given = {a.name: a for a in _meant(proto, scope)}
        if self.is_local(proto):
            body = self._local[proto.domain, proto.op_type]
            defaults = {a.name: a for a in body.attribute_proto}
        else:
            schema = _schema(proto, scope)
            body = _schema_body(schema, proto, list(given.values()), types)
            defaults = {
                name: a.default_value
                for name, a in schema.attributes.items()
                if a.default_value.name
            }
        return Function(
            tuple(body.input),
            tuple(body.output),
            body.node,
            {"" if o.domain == "ai.onnx" else o.domain: o.version for o in body.opset_import},
            {**defaults, **given},
        )


def _meant(proto: NodeProto, scope: Scope) -> list[AttributeProto]:
    """The node's attributes, references to those of the enclosing call resolved."""
    from onnx import AttributeProto

    found = []
    for a in proto.attribute:
        if not a.ref_attr_name:
            found.append(a)
        elif a.ref_attr_name in scope.attrs:
            copy = AttributeProto()
            copy.CopyFrom(scope.attrs[a.ref_attr_name])
            copy.name = a.name
            found.append(copy)
    return found


def _schema(proto: NodeProto, scope: Scope) -> Any:
    """ONNX's schema of the operator in its opset, None when it has none."""
    from onnx import defs

    domain = "" if proto.domain == "ai.onnx" else proto.domain
    version = scope.opsets.get(domain, NEWEST if not domain else 1)
    if not defs.has(proto.op_type, domain):
        return None
    try:
        return defs.get_schema(proto.op_type, version, domain)
    except defs.SchemaError:  # newer than the model's opset
        return None


def _schema_body(
    schema: Any,
    proto: NodeProto,
    attrs: list[AttributeProto],
    types: Sequence[TensorType | None],
) -> FunctionProto:
    from onnx import FunctionProto, NodeProto, helper

    if schema.has_function:
        body: FunctionProto = schema.function_body
        return body
    node = NodeProto()
    node.CopyFrom(proto)
    del node.attribute[:]
    node.attribute.extend(attrs)
    described = [
        helper.make_tensor_type_proto(ELEMENT_NUMBERS[t.dtype], t.shape).SerializeToString()
        if t is not None
        else b""
        for t in types
    ]
    built = FunctionProto()
    built.ParseFromString(
        schema.get_context_dependent_function(node.SerializeToString(), described)
    )
    return built
