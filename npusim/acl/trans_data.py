"""CANN's TransData as a single operator: one tensor from a layout to another."""

from __future__ import annotations

from npusim.acl.base import TensorDesc
from npusim.acl.state import PROCESS
from npusim.compiler import CompileOptions, lower_graph
from npusim.errors import GraphError
from npusim.ir import Graph, Layout, Node, Tensor
from npusim.ir.layout import storage_shape
from npusim.program.executable import Executable
from npusim.runtime import Code, InvalidUseError


def compile_trans_data(source: TensorDesc, target: TensorDesc) -> Executable:
    """The operator between two descriptions, of which one is plain.

    As in CANN, the dimensions of a blocked format are those in memory (FRACTAL_NZ: N1, M1, 16, 16).

    Raises:
        InvalidUseError: both plain or both blocked; dimensions or types that do not agree.
    """
    plain = [d for d in (source, target) if d.layout is Layout.ND]
    if len(plain) != 1 or source.dtype is not target.dtype:
        raise InvalidUseError(
            Code.FORMAT_NOT_MATCH,
            f"TransData from format {source.form} of {source.dtype.value} to {target.form} of "
            f"{target.dtype.value}",
            "one plain and one blocked format of the same type",
            "describe the tensors so; Cast changes types",
        )
    logical = plain[0].shape
    for desc in (source, target):
        try:
            wanted = storage_shape(logical, desc.layout, desc.dtype)
        except GraphError as error:
            raise InvalidUseError(
                Code.FORMAT_NOT_MATCH, error.what, error.allowed, error.fix
            ) from None
        if desc.shape != wanted:
            raise InvalidUseError(
                Code.OP_OUTPUT_NOT_MATCH if desc is target else Code.OP_INPUT_NOT_MATCH,
                f"dimensions {desc.shape} in format {desc.form}",
                f"{wanted} for a tensor of shape {logical}",
                "describe the tensor so",
            )
    graph = Graph("TransData", [], {}, ["x"], ["y"])
    for name, desc in (("x", source), ("y", target)):
        graph.tensors[name] = Tensor(name, logical, desc.dtype, desc.layout)
    graph.nodes.append(Node("TransData", "TransData", ("x",), ("y",), {}))
    return lower_graph(graph, PROCESS.device.chip, CompileOptions("fp32"))
