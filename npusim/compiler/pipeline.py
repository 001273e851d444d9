"""The compiler, readable at a glance: passes over the Graph, then lowering and the memory plan."""

from __future__ import annotations

from collections.abc import Callable

from npusim.chip.spec import ChipSpec
from npusim.compiler.lower import lower
from npusim.compiler.memory import plan_memory
from npusim.compiler.options import CompileContext, CompileOptions
from npusim.compiler.passes.batchnorm import fold_batchnorm
from npusim.compiler.passes.cleanup import remove_dead, remove_identities
from npusim.compiler.passes.fold_constants import fold_constants
from npusim.compiler.passes.fuse import fuse_bias, fuse_epilogues
from npusim.compiler.passes.grouped_conv import expand_grouped_conv
from npusim.compiler.passes.layout import assign_layouts
from npusim.compiler.passes.precision import assign_precision
from npusim.ir import Graph, verify
from npusim.program.executable import Executable, verify_executable

Pass = Callable[[Graph, CompileContext], Graph]

#: In order. Each takes a verified graph and gives one.
PASSES: tuple[Pass, ...] = (
    remove_identities,
    fold_constants,
    fold_batchnorm,
    remove_dead,
    assign_precision,
    remove_identities,
    expand_grouped_conv,
    fuse_bias,
    fuse_epilogues,
    assign_layouts,
    remove_dead,
)


def compile_graph(graph: Graph, chip: ChipSpec, options: CompileOptions) -> Executable:
    """Compile a graph for a chip.

    Raises:
        UnsupportedError: an operator, a type or the memory that the chip does not have.
    """
    taken = {*graph.tensors, *(n.name for n in graph.nodes)}
    ctx = CompileContext(chip, options, taken=taken)
    for rewrite in PASSES:
        graph = verify(rewrite(graph, ctx))
    lowered = lower(graph, ctx)
    memory = plan_memory(graph, lowered, chip)
    constants = {n: c for n, c in graph.constants.items() if n in memory.buffers}
    return verify_executable(
        Executable(
            name=graph.name,
            chip=chip.name,
            precision=options.precision,
            tasks=lowered.tasks,
            buffers=memory.buffers,
            constants=constants,
            inputs=list(graph.inputs),
            outputs=list(graph.outputs),
            memory=memory.plan,
            notes=ctx.notes,
        )
    )
