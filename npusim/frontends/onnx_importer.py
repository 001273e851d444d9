"""Growing a Graph from the nodes of an ONNX file, one by one, in their order."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.errors import GraphError, NpusimError, UnsupportedError, nearest
from npusim.frontends import (
    onnx_contrib,
    onnx_decomposed,  # noqa: F401  (registers rules)
    onnx_einsum,  # noqa: F401
    onnx_opset,
    onnx_training,
)
from npusim.frontends.onnx_control import CONTROL
from npusim.frontends.onnx_functions import Functions
from npusim.frontends.onnx_scope import Scope, names_read
from npusim.frontends.onnx_tensor import attribute, constant, element_type
from npusim.frontends.onnx_values import SMALL, Asked, Values
from npusim.ir import Constant, DType, Graph, Node, Tensor, TensorType
from npusim.ops import compute_node, get_operator, has_operator, infer_node
from npusim.ops.shaping import ConstantOfShape

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

MOST_NODES = 50_000  #: of a graph, loops unrolled and functions expanded
MOST_BYTES = 1 << 40  #: of a tensor
MOST_DIMENSIONS = 32  #: of a tensor: numpy broadcasts no more

STANDARD_DOMAINS = ("", "ai.onnx")
#: Domains of which some operators are rewritten in standard ones.
_DIALECTS = {d.domain: d for d in (onnx_contrib.DIALECT, onnx_training.DIALECT)}
_OPTIONAL_OUTPUTS = ("BatchNormalization", "Dropout", "LayerNormalization", "MaxPool")
_MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
_CONSTANT_LISTS: dict[str, type] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


@dataclass(frozen=True)
class Problem:
    """A node that cannot be imported, and why."""

    name: str
    op_type: str
    domain: str
    opset: int
    error: NpusimError


class Importer:
    """Builds a Graph node by node; each tensor's type is known at once.

    Args:
        model: the file; opsets: domain → version; base: directory of external data.
        given: elements of inputs, by name.
        bodies: operators that are imported as the bodies ONNX defines them by, where their
            first operand is fp16 or bf16: then each step rounds as ONNX writes it.
        problems: collects what cannot be imported, instead of raising it; tensors that follow
            from such a node stay unknown.
    """

    def __init__(
        self,
        model: ModelProto,
        opsets: Mapping[str, int],
        base: Path | None,
        given: Mapping[str, np.ndarray],
        bodies: Collection[str] = (),
        problems: list[Problem] | None = None,
    ) -> None:
        proto = model.graph
        self.proto = proto
        self.opsets = opsets
        self.base = base
        self.graph = Graph(proto.name or "model", [], {}, [], [o.name for o in proto.output])
        self.values = Values(self.graph, given)
        self._done = 0
        self._given = given
        self._functions = Functions(model)
        self._bodies = bodies
        self._problems = problems
        self._lost: set[str] = set()
        self._known_copies: dict[str, str] = {}
        self._node_names: set[str] = set()
        names = [*(t.name for t in proto.initializer), *(i.name for i in proto.input)]
        self._tensor_names = {*names, *(o for n in proto.node for o in n.output)}

    def run(self, inputs: Mapping[str, TensorType], unknown: Sequence[str] = ()) -> None:
        """Import the whole graph, with inputs of the given types, and some of unknown ones."""
        if self.proto.sparse_initializer:
            raise UnsupportedError("sparse weights", "dense initializers", "densify the model")
        read = names_read(self.proto.node) | set(self.graph.outputs)
        names: dict[str, str] = {}
        for name, type_ in inputs.items():
            self.graph.inputs.append(name)
            self._add_tensor(name, type_, f"input {name!r}")
            names[name] = name
        names.update((name, name) for name in unknown)
        self._lost.update(unknown)
        self.body(self.proto, Scope(ChainMap(names), self.opsets, read=read))
        self._name_outputs(names)
        self._drop_unused_constants()
        self.graph.assumed = {n: self._given[n] for n in sorted(self.values.used)}

    def body(self, proto: GraphProto, scope: Scope) -> list[str]:
        """Import a graph or subgraph into `scope`; the tensors of its outputs."""
        for initializer in proto.initializer:
            value = constant(initializer, self.base)
            scope.names[initializer.name] = self._add(initializer.name, value, scope)
        for node in proto.node:
            self.node(node, scope)
        if not scope.prefix:
            return []
        return [self.lookup(o.name, scope, f"the body {scope.prefix}") for o in proto.output]

    # What rewriting rules, branches and loops may ask.

    def constant(self, hint: str, value: np.ndarray) -> str:
        """Add a constant under a fresh name."""
        name = self.fresh(hint)
        self._add_constant(name, Constant.of(value))
        return name

    def fresh(self, hint: str) -> str:
        """An unused tensor name."""
        return _unique(hint, self._tensor_names)

    def node_name(self, hint: str) -> str:
        """An unused node name."""
        return _unique(hint, self._node_names)

    def type(self, name: str) -> TensorType:
        """Type of a tensor made before."""
        return self.graph.type_of(name)

    def known(self, name: str) -> np.ndarray | None:
        """Value of a tensor where it is known before the run."""
        return self.values.of(name) if name else None

    def lookup(self, name: str, scope: Scope, reader: str) -> str:
        """The tensor that a name of the file stands for; '' stays.

        Raises:
            GraphError: nothing made it before.
        """
        found = scope.names.get(name)
        if found is None and name:
            near = nearest(name, scope.names)
            raise GraphError(
                f"{reader} reads {name!r}, which nothing made before",
                "inputs, initializers and outputs of earlier nodes",
                f"did you mean {near!r}?" if near else "sort the model's nodes topologically",
            )
        return found or ""

    # Steps.

    def _add(self, name: str, value: Constant, scope: Scope) -> str:
        """A constant of the file under its name, in a body under a fresh one."""
        kept = self.fresh(scope.prefix + name) if scope.prefix else name
        self._add_constant(kept, value)
        return kept

    def _add_constant(self, name: str, value: Constant) -> None:
        self._add_tensor(name, value.type, f"constant {name!r}")
        self.graph.constants[name] = value

    def _add_tensor(self, name: str, type_: TensorType, what: str) -> None:
        """A new tensor of the graph.

        Raises:
            GraphError: there is one of that name. UnsupportedError: it is too large.
        """
        if name in self.graph.tensors:
            raise GraphError(
                f"{what} is made twice", "one maker for every tensor", "rename one of them"
            )
        rank, size = len(type_.shape), type_.size * type_.dtype.size
        if rank > MOST_DIMENSIONS or size > MOST_BYTES:
            shown = type_.shape if rank <= MOST_DIMENSIONS else f"of {rank} dimensions"
            raise UnsupportedError(
                f"{what} has {size} bytes, its shape is {shown}",
                f"at most {MOST_BYTES} bytes and {MOST_DIMENSIONS} dimensions",
                "give smaller shapes, or repair the model",
            )
        self.graph.tensors[name] = Tensor(name, type_.shape, type_.dtype)

    def spend(self, where: str) -> None:
        """Count a node, or a turn of a loop.

        Raises:
            UnsupportedError: more than `MOST_NODES` of them.
        """
        self._done += 1
        if self._done > MOST_NODES:
            raise UnsupportedError(
                f"more than {MOST_NODES} nodes, loops unrolled, at {where}",
                f"at most {MOST_NODES}",
                "give the loops fewer turns",
            )

    def node(self, proto: NodeProto, scope: Scope) -> None:
        """One node of the file: a constant, one or more nodes of the graph, or a whole body."""
        self.spend(f"node {_name(proto)!r}")
        if self._problems is None:
            self._checked(proto, scope)
            return
        try:
            if any(scope.names.get(i) in self._lost for i in proto.input if i):
                self._lose(proto, scope)
                self._known_operator(proto, scope)
            else:
                self._checked(proto, scope)
        except NpusimError as e:
            opset = scope.opsets.get(proto.domain, 0)
            name = scope.prefix + _name(proto)
            self._problems.append(Problem(name, proto.op_type, proto.domain, opset, e))
            self._lose(proto, scope)

    def _checked(self, proto: NodeProto, scope: Scope) -> None:
        """Import a node; a file may hold attributes and operands of any kind and number.

        Raises:
            GraphError: they are none that the operator's rules can make sense of.
        """
        try:
            self._import(proto, scope)
        except _MALFORMED as e:
            raise GraphError(
                f"node {scope.prefix + _name(proto)!r} ({proto.op_type}) is malformed: "
                f"{type(e).__name__}: {' '.join(str(e).split())}",
                "operands and attributes as ONNX defines them",
                "see what onnx.checker.check_model says, and export the model again",
            ) from e

    def _lose(self, proto: NodeProto, scope: Scope) -> None:
        """The outputs' types cannot be known."""
        for o in proto.output:
            scope.names[o] = lost = f"{scope.prefix}{o}"
            self._lost.add(lost)

    def _known_operator(self, proto: NodeProto, scope: Scope) -> None:
        """Raise when there is no such operator, whatever its operands."""
        domain = proto.domain in STANDARD_DOMAINS
        known = has_operator(proto.op_type) or onnx_opset.has_rule(proto.op_type)
        if domain and (known or proto.op_type in (*CONTROL, "Constant")):
            return
        if proto.domain in _DIALECTS and _DIALECTS[proto.domain].has_rewrite(proto.op_type):
            return
        if not self._functions.has(proto, scope):
            self._refuse(proto, _name(proto))

    def _refuse(self, proto: NodeProto, name: str) -> None:
        if proto.domain in STANDARD_DOMAINS:
            get_operator(proto.op_type, name)
        raise UnsupportedError(
            f"operator {proto.domain}.{proto.op_type} at node {name!r}",
            f"the standard domain, and parts of {' and '.join(_DIALECTS)}",
            "export the model with standard operators",
        )

    def _import(self, proto: NodeProto, scope: Scope) -> None:
        standard = proto.domain in STANDARD_DOMAINS
        if standard and proto.op_type in CONTROL:
            where = self.node_name(scope.prefix + _name(proto))
            made = CONTROL[proto.op_type](self, proto, scope, where)
            self._bind(proto, made, scope)
            return
        local = self._functions.is_local(proto)
        known = has_operator(proto.op_type) or onnx_opset.has_rule(proto.op_type)
        if known and proto.op_type in self._bodies:
            x = self.lookup(proto.input[0], scope, f"node {_name(proto)!r}")
            known = self.type(x).dtype not in (DType.FLOAT16, DType.BFLOAT16)
        if standard and not local and (known or proto.op_type == "Constant"):
            self._standard(proto, scope)
        elif proto.domain in _DIALECTS and not local:
            node = self._convert(proto, scope)
            self._place_all(_DIALECTS[proto.domain].standardise(node, self))
        elif self._functions.has(proto, scope):
            self._call(proto, scope)
        else:
            self._refuse(proto, scope.prefix + _name(proto))

    def _standard(self, proto: NodeProto, scope: Scope) -> None:
        node = self._convert(proto, scope)
        if node.op_type == "Constant":
            self._add_constant(node.outputs[0], _constant_node(node))
            return
        opset = scope.opsets.get("", onnx_opset.NEWEST)
        self._place_all(onnx_opset.modernise(node, self, opset))

    def _call(self, proto: NodeProto, scope: Scope) -> None:
        """A function's body in place of the node that calls it."""
        where = scope.prefix + _name(proto)
        inputs = [self.lookup(i, scope, f"node {where!r}") for i in proto.input]
        types = [self.type(i) if i else None for i in inputs]
        function = self._functions.of(proto, scope, types)
        names = dict(zip(function.inputs, inputs, strict=False))
        read = names_read(function.nodes) | set(function.outputs)
        inner = scope.called(
            self.node_name(_name(proto)), names, function.opsets, function.attrs, read
        )
        for node in function.nodes:
            self.node(node, inner)
        wanted = zip(proto.output, function.outputs, strict=False)
        made = [self.lookup(o, inner, f"function {where!r}") if name else "" for name, o in wanted]
        self._bind(proto, made, scope)

    def _bind(self, proto: NodeProto, tensors: Sequence[str], scope: Scope) -> None:
        """Let the node's outputs stand for tensors that exist."""
        for name, tensor in zip(proto.output, tensors, strict=True):
            if name:
                scope.names[name] = tensor

    def _convert(self, proto: NodeProto, scope: Scope) -> Node:
        """The node as it is, under a unique name; its outputs are bound."""
        name = self.node_name(scope.prefix + _name(proto))
        where = f"node {name!r} ({proto.op_type})"
        kinds = self._functions.attribute_kinds(proto, scope)
        attrs: dict[str, Any] = {}
        for a in proto.attribute:
            meant = scope.attrs.get(a.ref_attr_name) if a.ref_attr_name else a
            if meant is None:
                continue
            if kinds.get(a.name, meant.type) != meant.type:
                raise GraphError(
                    f"attribute {a.name!r} of {where} is of kind {meant.type}",
                    f"kind {kinds[a.name]} (AttributeProto.AttributeType)",
                    "export the model again",
                )
            attrs[a.name] = attribute(meant, where)
        for key in ("to", "dtype", "output_dtype", "output_datatype", "precision"):
            if isinstance(attrs.get(key), int) and (attrs[key] or key in ("to", "dtype")):
                attrs[key] = element_type(attrs[key], where).value
        kept = list(proto.output)
        if proto.op_type in _OPTIONAL_OUTPUTS:
            while len(kept) > 1 and kept[-1] not in scope.read:
                kept.pop()
        inputs = tuple(self.lookup(i, scope, where) for i in _stripped(proto.input))
        outputs = _stripped(kept)
        if scope.prefix:
            outputs = tuple(o and self.fresh(scope.prefix + o) for o in outputs)
        scope.names.update(zip(_stripped(kept), outputs, strict=True))
        return Node(name, proto.op_type, inputs, outputs, attrs)

    def _place_all(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.place(node)

    def place(self, node: Node) -> None:
        """Infer a node's types; keep it, or fold it when constants decide its value.

        Raises:
            UnsupportedError: more than `MOST_NODES` nodes.
        """
        if "" in node.outputs:
            named = (o or self.fresh(f"{node.name}/unread") for o in node.outputs)
            node = node.with_(outputs=tuple(named))
        self.spend(f"node {node.name!r}")
        types = [self.graph.type_of(i) if i else None for i in node.inputs]
        asked = Asked(self.values, node.inputs)
        out = infer_node(node, types, asked)
        node = self._with_parameters(node, asked.positions)
        folded = self._fold(node, types, out)
        if folded is not None:
            for name, value in zip(node.outputs, folded, strict=True):
                self._add_constant(name, value)
            return
        for name, t in zip(node.outputs, out, strict=True):
            self._add_tensor(name, t, f"tensor {name!r} of node {node.name!r} ({node.op_type})")
        self.graph.nodes.append(node)
        self.values.made_by(node)

    def _with_parameters(self, node: Node, positions: set[int]) -> Node:
        """The node with constants where its shape rule asked for operands known by values given."""
        data = get_operator(node.op_type, node.name).data_inputs
        inputs = list(node.inputs)
        for i in sorted(positions - set(data)):
            name = inputs[i]
            value = None if name in self.graph.constants else self.values.of(name)
            if value is not None:
                if name not in self._known_copies:
                    self._known_copies[name] = self.constant(f"{name}/known", value)
                inputs[i] = self._known_copies[name]
        return node.with_(inputs=tuple(inputs))

    def _fold(
        self, node: Node, types: list[TensorType | None], out: list[TensorType]
    ) -> list[Constant] | None:
        """The node's outputs as constants, when static shapes and small constants decide them."""
        values = [self.values.constant(i) if i else None for i in node.inputs]
        if node.op_type == "ConstantOfShape" and values[0] is not None:
            value = ConstantOfShape.fill(node.attrs)
            return [Constant.full(out[0].shape, value.item(), out[0].dtype)]
        if node.op_type in ("Shape", "Size") and types[0] is not None:
            values = [np.broadcast_to(np.zeros((), np.int8), types[0].shape)]
        known = all(v is not None for v, i in zip(values, node.inputs, strict=True) if i)
        if not known or not node.inputs or any(t.size > SMALL for t in out):
            return None
        return [Constant.of(a) for a in compute_node(node, values, out)]

    def _name_outputs(self, names: Mapping[str, str]) -> None:
        """Give the graph's outputs their names, where branches or functions made them."""
        made = {o for n in self.graph.nodes for o in n.outputs} - set(self.graph.outputs)
        renamed: dict[str, str] = {}
        for name in self.graph.outputs:
            found = names.get(name, name)
            if found in made - set(renamed):
                renamed[found] = name
                self.graph.tensors[name] = replace(self.graph.tensors.pop(found), name=name)
            elif found != name and found not in self._lost:
                source = renamed.get(found, found)
                made_by = self.node_name(f"Identity_{name}")
                self.place(Node(made_by, "Identity", (source,), (name,)))
        if renamed:
            self.graph.nodes = [
                n.with_(
                    inputs=tuple(renamed.get(i, i) for i in n.inputs),
                    outputs=tuple(renamed.get(o, o) for o in n.outputs),
                )
                for n in self.graph.nodes
            ]

    def _drop_unused_constants(self) -> None:
        used = {i for n in self.graph.nodes for i in n.inputs} | set(self.graph.outputs)
        for name in [c for c in self.graph.constants if c not in used]:
            del self.graph.constants[name], self.graph.tensors[name]


def _name(proto: NodeProto) -> str:
    """The node's name, made of its operator and first output when it has none."""
    return proto.name or f"{proto.op_type}_{next((o for o in proto.output if o), '')}"


def _constant_node(node: Node) -> Constant:
    """The value of a `Constant` node."""
    for key, value in node.attrs.items():
        if key == "value":
            return Constant.of(value)
        if key in _CONSTANT_LISTS:
            return Constant.of(np.array(value, _CONSTANT_LISTS[key]))
    raise UnsupportedError(
        f"Constant node {node.name!r} with {', '.join(node.attrs) or 'no value'}",
        ", ".join(["value", *_CONSTANT_LISTS]),
        "export the model with dense numeric constants",
    )


def _stripped(names: list[str]) -> tuple[str, ...]:
    """Names without trailing absent ones."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)


def _unique(hint: str, taken: set[str]) -> str:
    """`hint`, numbered when taken; taken from now on."""
    name, n = hint, 1
    while name in taken:
        n += 1
        name = f"{hint}_{n}"
    taken.add(name)
    return name
