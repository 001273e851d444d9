"""Graph → Executable."""

from npusim.compiler.options import PRECISIONS, CompileOptions
from npusim.compiler.pipeline import PASSES, compile_graph
from npusim.compiler.select import kernel_of

__all__ = ["PASSES", "PRECISIONS", "CompileOptions", "compile_graph", "kernel_of"]
