"""ONNX models to Graphs: read, bind shapes, modernise, infer, fold what shapes alone decide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from npusim.errors import GraphError, ModelError, NpusimError, UnsupportedError, nearest
from npusim.frontends import onnx_contrib, onnx_opset
from npusim.frontends.onnx_shapes import bind_inputs
from npusim.frontends.onnx_tensor import attribute, constant, element_type
from npusim.ir import Constant, Graph, Node, Tensor, TensorType, verify
from npusim.ops import compute_node, infer_node
from npusim.ops.shaping import ConstantOfShape

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

#: Values of at most this many elements are known to shape rules, and folded.
SMALL = 4096

_STANDARD_DOMAINS = ("", "ai.onnx")
_OPTIONAL_OUTPUTS = ("BatchNormalization", "Dropout", "LayerNormalization", "MaxPool")
_CONSTANT_LISTS: dict[str, type] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def load_onnx(
    source: str | Path | ModelProto,
    *,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Graph:
    """Read an ONNX model as a verified Graph of the newest operator forms, all shapes known.

    Args:
        source: a .onnx file, or a model in memory.
        batch: the first dimension of every input, where it is symbolic, or common to all inputs.
        shapes: whole shapes of inputs, by name; they win over `batch` and the model.

    Raises:
        ModelError: no readable model, data missing, or dimensions left unbound.
        UnsupportedError: an operator, type or form npusim lacks; names the node.
        GraphError: shapes that do not fit.
    """
    model, base = _read(source)
    opset = _opset(model)
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    bound = bind_inputs(model.graph, batch, shapes or {})
    importer = _Importer(model.graph, opset, base)
    try:
        importer.run(bound.types)
    except NpusimError as e:
        if not bound.rebatched:
            raise
        raise ModelError(
            f"the model does not work at batch {batch}, only at the batch in the file: {e.what}",
            "models whose nodes do not fix the batch size by constants (as in Reshape)",
            "leave out --batch, or export the model with a symbolic batch dimension",
        ) from None
    return verify(importer.graph)


def _read(source: str | Path | ModelProto) -> tuple[ModelProto, Path | None]:
    """The model and the directory that its external data is relative to."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if isinstance(source, onnx.ModelProto):
        return source, None
    path = Path(source)
    accepted = "an ONNX model (a binary .onnx file)"
    if not path.is_file():
        raise ModelError(f"no file {str(path)!r}", accepted, "check the path")
    try:
        model = onnx.load_model(path, load_external_data=False)
    except (DecodeError, ValueError) as e:
        raise ModelError(
            f"{str(path)!r} is not an ONNX model, or is damaged ({e})",
            accepted,
            "download or export the model again (a Git LFS pointer is not the model)",
        ) from None
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{str(path)!r} holds no graph", accepted, "export the model again")
    return model, path.parent


def _opset(model: ModelProto) -> int:
    """The model's version of the standard operators."""
    versions = [o.version for o in model.opset_import if o.domain in _STANDARD_DOMAINS]
    version = versions[0] if versions else 1
    if not onnx_opset.OLDEST <= version <= onnx_opset.NEWEST:
        raise UnsupportedError(
            f"a model of opset {version}",
            f"opset {onnx_opset.OLDEST} to {onnx_opset.NEWEST}",
            "export it anew, or convert it with onnx.version_converter.convert_version",
        )
    return version


class _Importer:
    """Builds a Graph node by node; each tensor's type, and small values, are known at once."""

    def __init__(self, proto: GraphProto, opset: int, base: Path | None) -> None:
        self.proto = proto
        self.opset = opset
        self.base = base
        self.graph = Graph(proto.name or "model", [], {}, [], [o.name for o in proto.output])
        self._values: dict[str, np.ndarray] = {}
        self._node_names: set[str] = set()
        names = [*(t.name for t in proto.initializer), *(i.name for i in proto.input)]
        self._tensor_names = {*names, *(o for n in proto.node for o in n.output)}
        self._read_names = {i for n in proto.node for i in n.input} | set(self.graph.outputs)

    def run(self, inputs: Mapping[str, TensorType]) -> None:
        """Import the whole graph, with inputs of the given types."""
        if self.proto.sparse_initializer:
            raise UnsupportedError("sparse weights", "dense initializers", "densify the model")
        for initializer in self.proto.initializer:
            self._add_constant(initializer.name, constant(initializer, self.base))
        for name, type_ in inputs.items():
            self.graph.inputs.append(name)
            self.graph.tensors[name] = Tensor(name, type_.shape, type_.dtype)
        for node in self.proto.node:
            self._import(node)
        self._drop_unused_constants()

    # What rewriting rules may ask (onnx_opset.Builder).

    def constant(self, hint: str, value: np.ndarray) -> str:
        """Add a constant under a fresh name."""
        name = self.fresh(hint)
        self._add_constant(name, Constant.of(value))
        return name

    def fresh(self, hint: str) -> str:
        """An unused tensor name."""
        return _unique(hint, self._tensor_names)

    def type(self, name: str) -> TensorType:
        """Type of a tensor made before."""
        return self._tensor(name, "a rewriting rule").type

    # Steps.

    def _add_constant(self, name: str, value: Constant) -> None:
        self.graph.constants[name] = value
        self.graph.tensors[name] = Tensor(name, value.type.shape, value.type.dtype)

    def _tensor(self, name: str, reader: str) -> Tensor:
        found = self.graph.tensors.get(name)
        if found is None:
            near = nearest(name, self.graph.tensors)
            raise GraphError(
                f"{reader} reads {name!r}, which nothing made before",
                "inputs, initializers and outputs of earlier nodes",
                f"did you mean {near!r}?" if near else "sort the model's nodes topologically",
            )
        return found

    def _value(self, name: str) -> np.ndarray | None:
        """Value of a small constant, else None."""
        if name in self._values:
            return self._values[name]
        found = self.graph.constants.get(name)
        if found is None or found.type.size > SMALL:
            return None
        self._values[name] = value = found.value()
        return value

    def _import(self, proto: NodeProto) -> None:
        """One node of the file: a constant, or one or more nodes of the graph."""
        node = self._convert(proto)
        if node.op_type == "Constant":
            self._add_constant(node.outputs[0], _constant_node(node))
            return
        if proto.domain == onnx_contrib.DOMAIN:
            nodes = onnx_contrib.standardise(node, self)
        elif proto.domain in _STANDARD_DOMAINS:
            nodes = onnx_opset.modernise(node, self, self.opset)
        else:
            raise UnsupportedError(
                f"operator {proto.domain}.{proto.op_type} at node {node.name!r}",
                f"the standard domain, and parts of {onnx_contrib.DOMAIN}",
                "export the model with standard operators",
            )
        for n in nodes:
            self._place(n)

    def _convert(self, proto: NodeProto) -> Node:
        """The node as it is, under a unique name."""
        first = next((o for o in proto.output if o), "")
        name = _unique(proto.name or f"{proto.op_type}_{first}", self._node_names)
        where = f"node {name!r} ({proto.op_type})"
        attrs = {a.name: attribute(a, where) for a in proto.attribute}
        for key in ("to", "dtype"):
            if isinstance(attrs.get(key), int):
                attrs[key] = element_type(attrs[key], where).value
        outputs = list(proto.output)
        if proto.op_type in _OPTIONAL_OUTPUTS:
            while len(outputs) > 1 and outputs[-1] not in self._read_names:
                outputs.pop()
        return Node(name, proto.op_type, _stripped(proto.input), _stripped(outputs), attrs)

    def _place(self, node: Node) -> None:
        """Infer a node's types; keep it, or fold it when its value is known now."""
        if "" in node.outputs:
            named = (o or self.fresh(f"{node.name}/unread") for o in node.outputs)
            node = node.with_(outputs=tuple(named))
        where = f"node {node.name!r} ({node.op_type})"
        types = [self._tensor(i, where).type if i else None for i in node.inputs]
        values = [self._value(i) if i else None for i in node.inputs]
        out = infer_node(node, types, values)
        folded = self._fold(node, types, values, out)
        if folded is not None:
            for name, value in zip(node.outputs, folded, strict=True):
                self._add_constant(name, value)
            return
        for name, t in zip(node.outputs, out, strict=True):
            self.graph.tensors[name] = Tensor(name, t.shape, t.dtype)
        self.graph.nodes.append(node)

    def _fold(
        self,
        node: Node,
        types: list[TensorType | None],
        values: list[np.ndarray | None],
        out: list[TensorType],
    ) -> list[Constant] | None:
        """The node's outputs as constants, when static shapes and small constants decide them."""
        if node.op_type == "ConstantOfShape":
            value = ConstantOfShape.fill(node.attrs)
            return [Constant.full(out[0].shape, value.item(), out[0].dtype)]
        if node.op_type in ("Shape", "Size") and types[0] is not None:
            values = [np.broadcast_to(np.zeros((), np.int8), types[0].shape)]
        known = all(v is not None for v, i in zip(values, node.inputs, strict=True) if i)
        if not known or not node.inputs or any(t.size > SMALL for t in out):
            return None
        return [Constant.of(a) for a in compute_node(node, values, out)]

    def _drop_unused_constants(self) -> None:
        used = {i for n in self.graph.nodes for i in n.inputs} | set(self.graph.outputs)
        for name in [c for c in self.graph.constants if c not in used]:
            del self.graph.constants[name], self.graph.tensors[name]


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
