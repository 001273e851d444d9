"""What each step of the compiler gives: the model compiled with one more of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from npusim.chip.spec import ChipSpec
from npusim.compiler import PASSES, CompileOptions, compile_graph, compile_watched
from npusim.compiler.rewrite import Kind
from npusim.errors import UnsupportedError
from npusim.explore.tiling_search import search_tilings
from npusim.ir import Graph
from npusim.machine.run import run_executable
from npusim.ops import attributes, get_operator
from npusim.ops.registry import Work
from npusim.program.executable import Executable, MemoryPlan
from npusim.timeline.ablated import Ablation, AblationRow

#: (largest error as text, whether an output is refused) of an executable.
Check = Callable[[Executable], tuple[str, bool]]
Progress = Callable[[str, int, int], None]  #: stage, done, total

#: Why the rows come in their order.
ORDER = (
    "The first row is the model as it is: fp32, O0, a place in memory for every tensor. Then comes "
    "the precision; then the passes that can be switched off, in the order in which they run; then "
    "memory reuse; then O3's search for tilings. Precision comes before the passes, as the "
    "compiler has it: what may be fused depends on the kernels, and a chip whose cube has no fp32 "
    "runs fp32 on its vector unit, where other fusions are legal and a gain says nothing about the "
    "program that is used. The last row has everything but the precision and the search, to set "
    "fp32 beside it."
)
REUSE, SEARCH, TWIN = "+ memory reuse", "+ O3 tiling search", "as O2, but fp32"
_ROOM = 1 << 60  #: bytes of HBM: more than any model needs


@dataclass(frozen=True)
class Step:
    """A row to be: its name, and how the model is compiled for it."""

    name: str
    options: CompileOptions
    search: bool = False
    twin: bool = False


def optional_passes() -> list[str]:
    """Names of the passes that can be switched off, in the order in which they first run."""
    return list(dict.fromkeys(p.name for p in PASSES if p.kind is not Kind.NEEDED))


def steps(precision: str, *, search: bool = True) -> list[Step]:
    """The rows of an ablation, first to last.

    Args:
        precision: "fp32" keeps the model's types: no step for it then.
        search: with O3's.
    """
    names = optional_passes()
    options = CompileOptions("fp32", 2, frozenset(names), reuse_memory=False)
    found = [Step("O0, fp32", options)]
    if precision != "fp32":
        options = replace(options, precision=precision)
        found.append(Step(f"+ {precision}", options))
    for name in names:
        options = replace(options, disabled=options.disabled - {name})
        found.append(Step(f"+ {name}", options))
    options = replace(options, reuse_memory=True)
    found.append(Step(REUSE, options))
    if search:
        found.append(Step(SEARCH, options, search=True))
    if precision != "fp32":
        found.append(Step(TWIN, replace(options, precision="fp32"), twin=True))
    return found


def work_of(graph: Graph) -> Work:
    """The work of all nodes, as the model has them."""
    total = Work(0, 0)
    for node in graph.nodes:
        types = [graph.type_of(i) if i else None for i in node.inputs]
        outputs = [graph.type_of(o) for o in node.outputs]
        work = get_operator(node.op_type, node.name).work(types, outputs, attributes(node))
        total = Work(total.macs + work.macs, total.vector_ops + work.vector_ops)
    return total


def ablate(
    graph: Graph,
    chip: ChipSpec,
    *,
    name: str,
    batch: int,
    precision: str,
    check: Check | None = None,
    reference: str = "not checked",
    search: bool = True,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Compile and time a model step by step.

    Args:
        check: compares the executable's outputs with the reference (None: timing only);
            reference: what it compares with, or why there is none.
        cache: folder of tilings found before (default: the user's cache folder).

    Raises:
        UnsupportedError: no row but those in fp32 runs.
    """
    wanted = steps(precision, search=search)
    rows: list[AblationRow] = []
    notes: list[str] = []
    for done, step in enumerate(wanted):
        if progress is not None:
            progress("rows", done, len(wanted))
        try:
            exe, operators, least = _compiled(graph, chip, step)
        except UnsupportedError as error:
            if step.options.precision != "fp32" or precision == "fp32":
                raise
            rows.append(AblationRow(step.name, twin=step.twin, reason=error.what))
            continue
        if step.search:
            searched = search_tilings(exe, chip, cache=cache, progress=progress)
            exe = searched.executable
            notes += searched.gain.notes
        timeline = run_executable(exe, chip).timeline
        text, failed = check(exe) if check is not None else ("", False)
        rows.append(
            AblationRow(
                step=step.name,
                operators=operators,
                kernels=len(exe.tasks),
                weight_bytes=exe.memory.weight_bytes,
                activation_bytes=exe.memory.activation_bytes,
                reused_bytes=least.activation_bytes,
                least_bytes=least.lower_bound,
                hbm_bytes=sum(op.bytes_hbm for op in timeline.ops),
                us=timeline.total_us,
                twin=step.twin,
                check=text,
                failed=failed,
            )
        )
    if progress is not None:
        progress("rows", len(wanted), len(wanted))
    dtype = CompileOptions(precision).mode.narrow.value
    return Ablation(
        model=name,
        batch=batch,
        chip=chip.name,
        precision=precision,
        nodes=len(graph.nodes),
        flops=2 * work_of(graph).macs,
        peak_flops=chip.cube_flops(dtype) or chip.vector_flops(dtype),
        fp32_cube_flops=chip.cube_flops("float32"),
        hbm_size=chip.hbm.size,
        hbm_rate=chip.hbm.bandwidth,
        reference=reference,
        rows=tuple(rows),
        notes=tuple(dict.fromkeys(notes)),
    )


def _compiled(graph: Graph, chip: ChipSpec, step: Step) -> tuple[Executable, int, MemoryPlan]:
    """The executable of a row, its operators, and the memory plan if tensors share memory.

    Compiled for as much HBM as it takes: what does not fit is told, and timed all the same.
    """
    roomy = chip.model_copy(update={"hbm": chip.hbm.model_copy(update={"size": _ROOM})})
    found = compile_watched(graph, roomy, step.options)
    shared = replace(step.options, reuse_memory=True)
    plan = found.executable.memory
    if step.options != shared:
        plan = compile_graph(graph, roomy, shared).memory
    return found.executable, found.passes[-1].ops_after, plan
