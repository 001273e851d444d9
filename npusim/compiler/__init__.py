"""Graph → Executable."""

from npusim.compiler.options import TILING_LEVEL, CompileOptions, Decision
from npusim.compiler.pipeline import (
    PASSES,
    Compilation,
    compile_graph,
    compile_watched,
    lower_graph,
)
from npusim.compiler.rewrite import PassReport, becomes
from npusim.compiler.select import kernel_of

__all__ = [
    "PASSES",
    "TILING_LEVEL",
    "Compilation",
    "CompileOptions",
    "Decision",
    "PassReport",
    "becomes",
    "compile_graph",
    "compile_watched",
    "kernel_of",
    "lower_graph",
]
