"""Lowering: nodes become tasks with a kernel and a plan; views become aliases of a buffer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

from npusim.compiler.core_count import best_plan
from npusim.compiler.options import CompileContext
from npusim.compiler.select import kernel_args, moves_nothing, select_kernel
from npusim.ir import DType, Graph, Node
from npusim.ops import attributes, get_operator
from npusim.ops.registry import Work
from npusim.program.executable import KernelCall, Task, TaskKind

CUBE_KERNELS = (
    "MatMul", "MatMulEpilogue", "Conv2D", "Conv2DEpilogue", "ConvConv", "ConvConvEpilogue",
    "FlashAttentionScore", "FlashAttentionScoreGrad",
)  # fmt: skip


@dataclass
class Lowered:
    """Tasks in order, and which tensors are only other views of a buffer (view → root)."""

    tasks: list[Task] = field(default_factory=list)
    alias: dict[str, str] = field(default_factory=dict)


def lower(graph: Graph, ctx: CompileContext) -> Lowered:
    """Choose a kernel, a tiling and a block dim for every node."""
    result = Lowered()
    for node in graph.nodes:
        if _is_view(graph, node, result):
            root = result.alias.get(node.inputs[0], node.inputs[0])
            result.alias[node.outputs[0]] = root
            continue
        result.tasks.append(_task(graph, node, ctx))
    return result


def _is_view(graph: Graph, node: Node, result: Lowered) -> bool:
    """A reinterpretation of a tensor that needs no bytes moved."""
    if not moves_nothing(graph, node):
        return False
    root = result.alias.get(node.inputs[0], node.inputs[0])
    # A graph output keeps memory of its own when it would be a graph input or a constant.
    fixed = root in graph.inputs or root in graph.constants
    return not (fixed and node.outputs[0] in graph.outputs)


def _task(graph: Graph, node: Node, ctx: CompileContext) -> Task:
    args = kernel_args(graph, node)
    kernel, _ = select_kernel(args, ctx.chip)
    call = None
    if kernel:
        call = KernelCall(kernel, args, best_plan(kernel, args, ctx))
        if kernel in ("MatMulVector", "ConvVector"):
            ctx.note(
                f"{node.op_type} in {args.operands[0].dtype.value} runs on the vector unit: "
                f"the cube of {ctx.chip.name} takes {', '.join(ctx.chip.core.cube.k)}"
            )
    else:
        _, why = select_kernel(args, ctx.chip, explain=True)
        ctx.note(f"{node.name} ({node.op_type}) runs on the AI CPU: {why}")
    work = _work(graph, node)
    return Task(
        name=node.name,
        op_type=node.op_type,
        kind=TaskKind.AI_CORE if kernel else TaskKind.AI_CPU,
        stream=0,
        node=node,
        inputs=node.inputs,
        outputs=node.outputs,
        call=call,
        flops=work.flops,
        macs=work.macs,
        compute_dtype=_compute_dtype(graph, node),
        uses_cube=kernel in CUBE_KERNELS,
    )


def _work(graph: Graph, node: Node) -> Work:
    """Work of the operator and its epilogue."""
    types = [graph.type_of(i) if i else None for i in node.inputs]
    out = [graph.type_of(o) for o in node.outputs]
    fused = {s.operand for s in node.epilogue}
    main = [t for i, t in enumerate(types) if i not in fused]
    counts = [get_operator(node.op_type).work(main, out, attributes(node))]
    for step in node.epilogue:
        op = get_operator(step.op_type)
        operands = [out[0], *([types[step.operand]] if step.operand is not None else [])]
        counts.append(op.work(operands, out[:1], {**op.attrs, **dict(step.attrs)}))
    return reduce(lambda a, b: Work(a.macs + b.macs, a.vector_ops + b.vector_ops), counts)


def _compute_dtype(graph: Graph, node: Node) -> DType:
    first = next((i for i in node.inputs if i), node.outputs[0])
    return graph.tensors[first].dtype
