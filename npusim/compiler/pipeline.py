"""The compiler, readable at a glance: passes over the Graph, lowering, streams, memory plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from npusim.chip.reuse import Reuse
from npusim.chip.spec import ChipSpec
from npusim.compiler.lower import lower
from npusim.compiler.memory import plan_memory
from npusim.compiler.options import CompileContext, CompileOptions, Decision
from npusim.compiler.passes.add_layernorm import fuse_add_layernorm
from npusim.compiler.passes.add_rmsnorm import fuse_add_rmsnorm
from npusim.compiler.passes.attention import fuse_attention
from npusim.compiler.passes.batchnorm import fold_batchnorm
from npusim.compiler.passes.cleanup import remove_dead, remove_identities
from npusim.compiler.passes.common_subexpressions import eliminate_common
from npusim.compiler.passes.conv1d import expand_conv1d
from npusim.compiler.passes.conv3d import expand_conv3d
from npusim.compiler.passes.conv_depth import fuse_conv_depth
from npusim.compiler.passes.conv_scale import fold_scales
from npusim.compiler.passes.conv_transpose import turn_transposed_conv
from npusim.compiler.passes.cube_cast import fuse_conv_cast, fuse_matmul_cast
from npusim.compiler.passes.cumulative import split_cumulative
from npusim.compiler.passes.dequant import fuse_dequant
from npusim.compiler.passes.factors import split_operators
from npusim.compiler.passes.fold_constants import fold_constants
from npusim.compiler.passes.fuse import (
    fuse_bias,
    fuse_conv_epilogues,
    fuse_elementwise,
    fuse_matmul_epilogues,
)
from npusim.compiler.passes.gelu import fuse_gelu
from npusim.compiler.passes.grouped_conv import expand_grouped_conv
from npusim.compiler.passes.heavy_format import propagate_fractals
from npusim.compiler.passes.indexed import arrange_indices
from npusim.compiler.passes.layernorm import fuse_layernorm
from npusim.compiler.passes.layout import assign_layouts
from npusim.compiler.passes.lp_pool import pool_powers
from npusim.compiler.passes.no_ops import remove_no_ops
from npusim.compiler.passes.pool_bytes import pool_bytes
from npusim.compiler.passes.pool_rank import pool_images
from npusim.compiler.passes.precision import assign_precision
from npusim.compiler.passes.qdq import fuse_qdq
from npusim.compiler.passes.qkv import fuse_qkv
from npusim.compiler.passes.quantized import lower_quantized
from npusim.compiler.passes.recurrent import unroll_recurrent
from npusim.compiler.passes.reduce_elemwise import fuse_reductions
from npusim.compiler.passes.requant import fuse_conv_quant, fuse_matmul_quant
from npusim.compiler.passes.reshapes import remove_reshapes
from npusim.compiler.passes.resize import split_resize
from npusim.compiler.passes.rmsnorm import fuse_rmsnorm
from npusim.compiler.passes.selection import use_row_kernels
from npusim.compiler.passes.swish import fuse_swish
from npusim.compiler.passes.trans_breadth import merge_same_transdata
from npusim.compiler.passes.trans_cast import fuse_trans_cast
from npusim.compiler.passes.trans_matmul import fuse_matmul_transdata
from npusim.compiler.passes.trans_motion import move_transdata
from npusim.compiler.passes.trans_symmetry import eliminate_symmetric
from npusim.compiler.passes.transpose_motion import sink_transposes
from npusim.compiler.rewrite import Pass, PassReport, apply, check_switches
from npusim.compiler.streams import assign_streams
from npusim.ir import Graph, verify
from npusim.program.executable import Executable, verify_executable

#: In order. Each takes a verified graph and gives one.
PASSES: tuple[Pass, ...] = (
    remove_identities,
    unroll_recurrent,
    fuse_qdq,
    lower_quantized,
    expand_conv1d,
    fold_constants,
    fuse_dequant,
    remove_no_ops,
    remove_reshapes,
    eliminate_common,
    sink_transposes,
    fuse_layernorm,
    fuse_rmsnorm,
    fuse_gelu,
    fuse_swish,
    turn_transposed_conv,
    fold_batchnorm,
    fold_scales,
    remove_dead,
    split_operators,
    split_cumulative,
    arrange_indices,
    expand_conv3d,
    split_resize,
    pool_powers,
    pool_bytes,
    pool_images,
    assign_precision,
    use_row_kernels,
    remove_identities,
    fuse_attention,
    expand_grouped_conv,
    fuse_bias,
    fuse_qkv,
    fuse_conv_quant,
    fuse_matmul_quant,
    fuse_conv_epilogues,
    fuse_matmul_epilogues,
    fuse_matmul_cast,
    fuse_add_layernorm,
    fuse_add_rmsnorm,
    fuse_reductions,
    fuse_elementwise,
    assign_layouts,
    propagate_fractals,
    eliminate_symmetric,
    move_transdata,
    merge_same_transdata,
    fuse_matmul_transdata,
    fuse_trans_cast,
    fuse_conv_cast,
    fuse_conv_depth,
    remove_dead,
)

#: Called with the graph and the report of the pass that made it; None for the model itself.
Watch = Callable[[Graph, PassReport | None], None]


@dataclass(frozen=True)
class Compilation:
    """An executable, and how it came about."""

    executable: Executable
    passes: tuple[PassReport, ...]
    decisions: tuple[Decision, ...]


def compile_graph(
    graph: Graph, chip: ChipSpec, options: CompileOptions, reuse: Reuse | None = None
) -> Executable:
    """Compile a graph for a chip.

    Args:
        reuse: tilings that compilations before found; they are taken where they hold here too.

    Raises:
        UnsupportedError: an operator, a type or the memory that the chip does not have.
    """
    return compile_watched(graph, chip, options, reuse=reuse).executable


def lower_graph(graph: Graph, chip: ChipSpec, options: CompileOptions) -> Executable:
    """The executable of a graph as it is, its types and layouts chosen already: no pass runs.

    Raises:
        UnsupportedError: an operator, a type or the memory that the chip does not have.
    """
    taken = {*graph.tensors, *(n.name for n in graph.nodes)}
    return _executable(verify(graph), CompileContext(chip, options, taken=taken))


def compile_watched(
    graph: Graph,
    chip: ChipSpec,
    options: CompileOptions,
    watch: Watch | None = None,
    reuse: Reuse | None = None,
) -> Compilation:
    """As `compile_graph`, telling what every pass did.

    Raises:
        UnsupportedError: see `compile_graph`; a pass to switch off that there is not.
    """
    check_switches(options)
    taken = {*graph.tensors, *(n.name for n in graph.nodes)}
    ctx = CompileContext(chip, options, taken=taken, reuse=reuse)
    if watch is not None:
        watch(verify(graph), None)
    reports = []
    for rewrite in PASSES:
        graph, report = apply(rewrite, graph, ctx)
        reports.append(report)
        if watch is not None and report.ran:
            watch(graph, report)
    executable = _executable(graph, ctx)
    return Compilation(executable, tuple(reports), tuple(ctx.decisions))


def _executable(graph: Graph, ctx: CompileContext) -> Executable:
    lowered = assign_streams(graph, lower(graph, ctx), ctx)
    memory = plan_memory(graph, lowered, ctx.chip, reuse=ctx.options.reuse_memory)
    constants = {n: c for n, c in graph.constants.items() if n in memory.buffers}
    return verify_executable(
        Executable(
            name=graph.name,
            chip=ctx.chip.name,
            precision=ctx.options.mode.name,
            tasks=lowered.tasks,
            buffers=memory.buffers,
            constants=constants,
            inputs=list(graph.inputs),
            outputs=list(graph.outputs),
            memory=memory.plan,
            notes=ctx.notes,
            assumed=dict(graph.assumed),
        )
    )
