"""The Graph waist: tensors, nodes, layouts, verifier, printer."""

from npusim.ir.dtype import DType, convert
from npusim.ir.graph import Constant, EpilogueStep, Graph, Node, Tensor, TensorType, verify
from npusim.ir.layout import Layout, pack, pack_into, storage_bytes, storage_shape, unpack
from npusim.ir.printer import format_graph, format_node

__all__ = [
    "Constant",
    "DType",
    "EpilogueStep",
    "Graph",
    "Layout",
    "Node",
    "Tensor",
    "TensorType",
    "convert",
    "format_graph",
    "format_node",
    "pack",
    "pack_into",
    "storage_bytes",
    "storage_shape",
    "unpack",
    "verify",
]
