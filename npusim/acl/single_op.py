"""Single operators: compiled when they are first called with a shape, then launched."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim import api
from npusim.acl.base import DataBuffer, TensorDesc
from npusim.acl.op_types import OnnxOp, OpCall, onnx_op
from npusim.acl.state import PROCESS
from npusim.acl.trans_data import compile_trans_data
from npusim.errors import NpusimError, UnsupportedError
from npusim.ir import Constant, Graph, Layout, Node, Tensor, TensorType, verify
from npusim.ops import get_operator, infer_node
from npusim.program.executable import Executable
from npusim.runtime import Code, InvalidUseError, Model

_PRECISION = "allow_fp32_to_fp16"  #: CANN's default for single operators

Operand = tuple[TensorDesc, DataBuffer]


def launch(
    op_type: str,
    inputs: list[Operand],
    outputs: list[Operand],
    attrs: dict[str, Any],
    stream: int,
) -> None:
    """Queue an operator on a stream.

    Raises:
        InvalidUseError: buffers smaller than their tensors; types or shapes that do not fit.
    """
    for operands, code in (
        (inputs, Code.OP_INPUT_NOT_MATCH),
        (outputs, Code.OP_OUTPUT_NOT_MATCH),
    ):
        for desc, buffer in operands:
            if buffer.nbytes < desc.nbytes and desc.constant is None:
                raise InvalidUseError(
                    code,
                    f"{buffer.nbytes} B for a tensor of {desc.nbytes} B of {op_type}",
                    "buffers as large as their tensors",
                    "allocate what get_tensor_desc_size tells",
                )
    model = compiled(op_type, [d for d, _ in inputs], [d for d, _ in outputs], attrs)
    model.execute_async(
        [buffer.address for desc, buffer in inputs if desc.constant is None],
        [buffer.address for _, buffer in outputs],
        PROCESS.stream(stream),
    )


def compiled(
    op_type: str,
    inputs: list[TensorDesc],
    outputs: list[TensorDesc],
    attrs: dict[str, Any],
    lend: bool = False,
) -> Model:
    """The operator, loaded on the thread's device; compiled at its first call with these shapes.

    Args:
        lend: its workspace is the caller's.
    """
    key = (
        PROCESS.device.number,
        lend,
        op_type,
        _key(inputs),
        _key(outputs),
        repr(sorted(attrs.items())),
    )
    found = PROCESS.operators.get(key)
    if found is None:
        exe = _compile(op_type, inputs, outputs, attrs)
        found = PROCESS.operators[key] = Model(PROCESS.device, exe, eager=True, lend=lend)
    return found


def _compile(
    op_type: str, inputs: list[TensorDesc], outputs: list[TensorDesc], attrs: dict[str, Any]
) -> Executable:
    if op_type == "TransData" and len(inputs) == len(outputs) == 1:
        return compile_trans_data(inputs[0], outputs[0])
    types = tuple(TensorType(d.shape, d.dtype) for d in inputs)
    op = onnx_op(OpCall(op_type, types, attrs))
    try:
        get_operator(op.name)
    except UnsupportedError as error:
        raise InvalidUseError(
            Code.OP_NOT_FOUND, f"operator type {op_type!r}", error.allowed, error.fix
        ) from None
    graph = _graph(op, op_type, inputs, outputs)
    return api.compile_graph(graph, PROCESS.device.chip, precision=_PRECISION)


def _graph(op: OnnxOp, name: str, inputs: list[TensorDesc], outputs: list[TensorDesc]) -> Graph:
    """One node, with a transpose before where CANN's operator has one built in."""
    _require_plain(inputs, outputs)
    graph = Graph(name, [], {}, [], [])
    operands = []
    for i, desc in enumerate(inputs):
        tensor = f"x{i}"
        graph.tensors[tensor] = Tensor(tensor, desc.shape, desc.dtype)
        if desc.constant is None:
            graph.inputs.append(tensor)
        else:
            graph.constants[tensor] = Constant.of(desc.constant)
        operands.append(_swapped(graph, tensor) if i in op.swaps else tensor)
    results = tuple(f"y{i}" for i in range(len(outputs)))
    node = Node(name, op.name, tuple(operands), results, op.attrs)
    known = [graph.constants[o].value() if o in graph.constants else None for o in operands]
    try:
        found = infer_node(node, [graph.type_of(o) for o in operands], known)
    except NpusimError as error:
        code = Code.OP_ATTR_NOT_MATCH if "attribute" in error.what else Code.OP_INPUT_NOT_MATCH
        raise InvalidUseError(code, error.what, error.allowed, error.fix) from None
    wanted = [TensorType(d.shape, d.dtype) for d in outputs]
    if list(found) != wanted:
        raise InvalidUseError(
            Code.OP_OUTPUT_NOT_MATCH,
            f"outputs {_named(wanted)} of {name}",
            _named(list(found)),
            "describe the outputs so",
        )
    for result, type in zip(results, found, strict=True):
        graph.tensors[result] = Tensor(result, type.shape, type.dtype)
    graph.nodes.append(node)
    graph.outputs.extend(results)
    return verify(graph)


def _swapped(graph: Graph, tensor: str) -> str:
    """The tensor with its last two dimensions exchanged."""
    type, name = graph.type_of(tensor), f"{tensor}_t"
    perm = list(range(len(type.shape)))
    perm[-2:] = perm[:-3:-1]
    shape = tuple(np.array(type.shape)[perm].tolist())
    graph.tensors[name] = Tensor(name, shape, type.dtype)
    graph.nodes.append(Node(name, "Transpose", (tensor,), (name,), {"perm": perm}))
    return name


def _require_plain(inputs: list[TensorDesc], outputs: list[TensorDesc]) -> None:
    for desc in (*inputs, *outputs):
        if desc.layout is not Layout.ND:
            raise InvalidUseError(
                Code.FORMAT_NOT_MATCH,
                f"format {desc.form} ({desc.layout.value}) of a single operator's tensor",
                "plain formats: NCHW (0), NHWC (1), ND (2)",
                "use a plain format; the compiler lays tensors out inside models by itself",
            )


def _key(descs: list[TensorDesc]) -> tuple[object, ...]:
    return tuple(
        (d.number, d.shape, d.form, None if d.constant is None else d.constant.tobytes())
        for d in descs
    )


def _named(types: list[TensorType]) -> str:
    return ", ".join(f"{t.dtype.value} {t.shape}" for t in types)
