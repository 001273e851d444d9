"""If, Loop and Scan at import: the branch that is taken, the turns one after the other.

Conditions and trip counts must be known: constants, or what follows from shapes or from values
given for inputs. A loop's turn becomes nodes of the graph like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from npusim.errors import GraphError, NeedsValuesError, UnsupportedError
from npusim.frontends.onnx_opset import NEWEST
from npusim.frontends.onnx_scope import Scope
from npusim.frontends.onnx_tensor import attribute, element_type
from npusim.frontends.onnx_values import Values
from npusim.ir import Node, TensorType

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


class Maker(Protocol):
    """What branches and loops ask of the importer."""

    values: Values

    def body(self, proto: GraphProto, scope: Scope) -> list[str]:
        """Import a subgraph; the tensors of its outputs."""

    def lookup(self, name: str, scope: Scope, reader: str) -> str:
        """The tensor that a name stands for."""

    def constant(self, hint: str, value: np.ndarray) -> str:
        """Add a constant; returns its name."""

    def fresh(self, hint: str) -> str:
        """An unused tensor name."""

    def node_name(self, hint: str) -> str:
        """An unused node name."""

    def type(self, name: str) -> TensorType:
        """Type of a tensor that exists already."""

    def place(self, node: Node) -> None:
        """Add a node."""

    def spend(self, where: str) -> None:
        """Count a turn of a loop; too many are an error."""


Attrs = Mapping[str, Any]
#: A construct: maker, node, scope and unique name → the tensors of the node's outputs.
Construct = Callable[[Maker, "NodeProto", Scope, str], list[str]]
CONTROL: dict[str, Construct] = {}


def construct(op_type: str) -> Callable[[Construct], Construct]:
    """Register how an operator with subgraphs is imported."""

    def register(fn: Construct) -> Construct:
        CONTROL[op_type] = fn
        return fn

    return register


@construct("If")
def _if(maker: Maker, proto: NodeProto, scope: Scope, where: str) -> list[str]:
    condition = maker.lookup(proto.input[0], scope, f"node {where!r} (If)")
    taken = _known(maker, condition, f"the condition of If node {where!r}")
    body = _subgraph(proto, "then_branch" if bool(taken) else "else_branch", where)
    return maker.body(body, scope.inner(_local(scope, where), body))


@construct("Loop")
def _loop(maker: Maker, proto: NodeProto, scope: Scope, where: str) -> list[str]:
    body = _subgraph(proto, "body", where)
    operands = [maker.lookup(i, scope, f"node {where!r} (Loop)") for i in proto.input]
    trips, condition, state = operands[0], operands[1] if operands[1:] else "", operands[2:]
    most = _trips(maker, trips, where)
    going = not condition or bool(_known(maker, condition, f"the condition of Loop {where!r}"))
    _check_arity(body, where, len(state) + 2, len(state) + 1)
    scans: list[list[str]] = [[] for _ in body.output[1 + len(state) :]]
    turn = 0
    bodies = scope.inner(_local(scope, where), body)
    while going and (most is None or turn < most):
        maker.spend(f"Loop node {where!r}")
        inner = bodies.turn(turn)
        given = [
            maker.constant(f"{where}/{turn}/turn", np.array(turn, np.int64)),
            maker.constant(f"{where}/{turn}/condition", np.array(True)),
            *state,
        ]
        inner.names.update(zip((i.name for i in body.input), given, strict=True))
        made = maker.body(body, inner)
        state = made[1 : 1 + len(state)]
        for scan, value in zip(scans, made[1 + len(state) :], strict=True):
            scan.append(value)
        turn += 1
        if most is None or turn < most:
            going = bool(_known(maker, made[0], f"the condition of Loop {where!r}"))
    stacked = [
        _stack(maker, scan, 0, f"{where}/scan_{i}", body.output[1 + len(state) + i])
        for i, scan in enumerate(scans)
    ]
    return [*state, *stacked]


def _trips(maker: Maker, name: str, where: str) -> int | None:
    """The most turns that a Loop may take, None for no limit."""
    if not name:
        return None
    return int(_known(maker, name, f"the trip count of Loop node {where!r}"))


@construct("Scan")
def _scan(maker: Maker, proto: NodeProto, scope: Scope, where: str) -> list[str]:
    operands = [maker.lookup(i, scope, f"node {where!r} (Scan)") for i in proto.input]
    attrs = {a.name: attribute(a, where) for a in proto.attribute if a.name != "body"}
    body = _subgraph(proto, "body", where)
    if scope.opsets.get("", NEWEST) >= 9:
        return _turns(maker, body, scope, where, operands, attrs)
    if operands[0]:
        raise UnsupportedError(
            f"Scan node {where!r} of opset 8 with lengths of sequences",
            "sequences of one length",
            "export the model with a newer opset",
        )
    return _batches(maker, body, scope, where, operands[1:], attrs)


def _batches(
    maker: Maker, body: GraphProto, scope: Scope, where: str, operands: list[str], attrs: Attrs
) -> list[str]:
    """Scan of opset 8: every operand has a batch axis in front, the scan's axis is the next."""
    own = {k: v for k, v in attrs.items() if k != "directions"}
    own["scan_input_directions"] = attrs.get("directions")
    made = []
    for batch in range(maker.type(operands[0]).shape[0]):
        at = f"{where}/{batch}"
        parts = [_part(maker, x, 0, batch, f"{at}/{i}") for i, x in enumerate(operands)]
        made.append(_turns(maker, body, scope, at, parts, own))
    results = zip(*made, strict=True)
    return [
        _stack(maker, list(parts), 0, f"{where}/batch_{i}", body.output[i])
        for i, parts in enumerate(results)
    ]


def _turns(
    maker: Maker, body: GraphProto, scope: Scope, where: str, operands: list[str], attrs: Attrs
) -> list[str]:
    """The turns of a Scan one after the other; its outputs."""
    n_scans = int(attrs.get("num_scan_inputs", 0))
    state, scanned = operands[: len(operands) - n_scans], operands[len(operands) - n_scans :]
    _check_arity(body, where, len(operands), len(state))
    axes = _each(attrs.get("scan_input_axes"), n_scans)
    backward = _each(attrs.get("scan_input_directions"), n_scans)
    turns = {maker.type(x).shape[axis] for x, axis in zip(scanned, axes, strict=True)}
    if len(turns) != 1:
        raise GraphError(
            f"scan inputs of node {where!r} have {sorted(turns)} elements along their axes",
            "one common number, of at least one scan input",
            "correct the shapes",
        )
    (n,) = turns
    scans: list[list[str]] = [[] for _ in body.output[len(state) :]]
    bodies = scope.inner(_local(scope, where), body)
    for turn in range(n):
        maker.spend(f"Scan node {where!r}")
        inner = bodies.turn(turn)
        parts = [
            _part(maker, x, axis, n - 1 - turn if back else turn, f"{where}/{turn}/part_{i}")
            for i, (x, axis, back) in enumerate(zip(scanned, axes, backward, strict=True))
        ]
        inner.names.update(zip((i.name for i in body.input), [*state, *parts], strict=True))
        made = maker.body(body, inner)
        state = made[: len(state)]
        for scan, value in zip(scans, made[len(state) :], strict=True):
            scan.append(value)
    out_axes = _each(attrs.get("scan_output_axes"), len(scans))
    out_backward = _each(attrs.get("scan_output_directions"), len(scans))
    stacked = [
        _stack(maker, scan[::-1] if back else scan, axis, f"{where}/scan_{i}", proto_out)
        for i, (scan, axis, back, proto_out) in enumerate(
            zip(scans, out_axes, out_backward, body.output[len(state) :], strict=True)
        )
    ]
    return [*state, *stacked]


def _each(values: Sequence[int] | None, n: int) -> list[int]:
    return list(values) if values else [0] * n


def _known(maker: Maker, name: str, what: str) -> np.ndarray:
    """The one element of a tensor that decides which nodes there are.

    Raises:
        NeedsValuesError: it is not known.
    """
    value = maker.values.of(name)
    if value is None:
        raise NeedsValuesError(
            f"{what} is computed at run time",
            "constants, and what follows from shapes or from values given for the inputs",
            "load the model with values of its inputs, or export it without control flow",
        )
    if value.size != 1:
        raise GraphError(f"{what} has shape {value.shape}", "one element", "correct the model")
    return value.reshape(())


def _subgraph(proto: NodeProto, key: str, where: str) -> GraphProto:
    found = next((a for a in proto.attribute if a.name == key and a.type == 5), None)
    if found is None:
        raise GraphError(
            f"node {where!r} ({proto.op_type}) lacks its subgraph {key!r}",
            "the attribute is required",
            "export the model again",
        )
    return found.g


def _check_arity(body: GraphProto, where: str, inputs: int, fewest_outputs: int) -> None:
    if len(body.input) != inputs or len(body.output) < fewest_outputs:
        raise GraphError(
            f"the body of node {where!r} has {len(body.input)} inputs and "
            f"{len(body.output)} outputs",
            f"{inputs} inputs and at least {fewest_outputs} outputs",
            "export the model again",
        )


def _local(scope: Scope, where: str) -> str:
    """The unique name without the prefix that the inner scope adds itself."""
    return where.removeprefix(scope.prefix)


def _part(maker: Maker, x: str, axis: int, index: int, hint: str) -> str:
    """x[..., index, ...] along `axis`."""
    at = maker.constant(f"{hint}/index", np.array(index, np.int64))
    out = maker.fresh(hint)
    maker.place(Node(maker.node_name(hint), "Gather", (x, at), (out,), {"axis": axis}))
    return out


def _stack(maker: Maker, parts: list[str], axis: int, hint: str, proto: object) -> str:
    """The values of all turns along a new axis."""
    out = maker.fresh(hint)
    if not parts:
        return _empty(maker, axis, out, proto)
    axes = maker.constant(f"{hint}/axes", np.array([axis], np.int64))
    rows = []
    for i, part in enumerate(parts):
        row = maker.fresh(f"{hint}/row_{i}")
        maker.place(Node(maker.node_name(row), "Unsqueeze", (part, axes), (row,)))
        rows.append(row)
    rank = len(maker.type(rows[0]).shape)
    attrs = {"axis": axis % rank}
    maker.place(Node(maker.node_name(hint), "Concat", tuple(rows), (out,), attrs))
    return out


def _empty(maker: Maker, axis: int, name: str, proto: object) -> str:
    """The result of no turn at all: the body must say the shape of what it would stack."""
    tensor = proto.type.tensor_type  # type: ignore[attr-defined]
    dims = [d.dim_value if d.WhichOneof("value") == "dim_value" else -1 for d in tensor.shape.dim]
    if not tensor.HasField("shape") or min(dims, default=0) < 0:
        raise UnsupportedError(
            f"a loop of no turns whose result {name!r} has no static shape",
            "a declared shape, or at least one turn",
            "declare the shape of the body's output",
        )
    dims.insert(axis if axis >= 0 else len(dims) + 1 + axis, 0)
    kind = element_type(tensor.elem_type, f"tensor {name!r}")
    return maker.constant(name, np.zeros(dims, kind.np))
