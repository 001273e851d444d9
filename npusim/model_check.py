"""What of a model can run, and where, found without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npusim.chip import ChipSpec
from npusim.compiler import CompileOptions, compile_graph
from npusim.errors import NeedsValuesError, NpusimError
from npusim.frontends.onnx_import import survey_onnx
from npusim.frontends.onnx_importer import Problem
from npusim.frontends.workload import Workload, find_workload, load_workload, run_inputs
from npusim.ir import Graph
from npusim.program.executable import Executable, TaskKind

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class ModelCheck:
    """The outcome of a check.

    Attributes:
        problems: nodes that cannot be run, in the model's order.
        nodes: nodes that can; those that follow from a problem are in neither.
        executable: these nodes compiled; None when there are none, or the compiler refuses them.
        refusal: why the compiler does.
    """

    name: str
    problems: tuple[Problem, ...]
    nodes: int
    executable: Executable | None = None
    refusal: NpusimError | None = None

    @property
    def passed(self) -> bool:
        """Whether the whole model can be run."""
        return not self.problems and self.refusal is None

    def shares(self) -> dict[str, tuple[int, int, int]]:
        """Unit → (tasks, FLOPs, bytes written)."""
        found = {"AI Core": (0, 0, 0), "AI CPU": (0, 0, 0)}
        if self.executable is None:
            return found
        buffers = self.executable.buffers
        for task in self.executable.tasks:
            unit = "AI Core" if task.kind is TaskKind.AI_CORE else "AI CPU"
            written = sum(buffers[o].nbytes for o in task.outputs if o)
            tasks, flops, size = found[unit]
            found[unit] = (tasks + 1, flops + task.flops, size + written)
        return found


def check_model(
    source: str,
    chip: ChipSpec,
    options: CompileOptions | None = None,
    *,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
) -> ModelCheck:
    """Import and compile as much of a model as there is support for.

    Args:
        source: as `load_workload` takes it; options: of the compiler (default: fp16).

    Raises:
        ModelError: the model as a whole cannot be read.
    """
    work = find_workload(source)
    if work.is_onnx:
        work = replace(work, batch=batch or work.batch, shapes={**work.shapes, **(shapes or {})})
        graph, problems = _survey(work, inputs or {})
    else:
        graph, problems = load_workload(source, batch=batch, shapes=shapes)[1], []
    nodes = len(graph.nodes)
    if not nodes:
        return ModelCheck(work.name, tuple(problems), 0)
    try:
        part = _with_all_results(graph) if problems else graph
        exe = compile_graph(part, chip, options or CompileOptions())
    except NpusimError as e:
        return ModelCheck(work.name, tuple(problems), nodes, refusal=e)
    return ModelCheck(work.name, tuple(problems), nodes, exe)


def _survey(work: Workload, inputs: Mapping[str, ArrayLike]) -> tuple[Graph, list[Problem]]:
    """As `survey_onnx`; with the inputs of a run where shapes follow from them."""
    found = survey_onnx(work.source, batch=work.batch, shapes=work.shapes, values=inputs)
    if not any(isinstance(p.error, NeedsValuesError) for p in found[1]):
        return found
    values = {**run_inputs(work, inputs), **inputs}
    again = survey_onnx(work.source, batch=work.batch, shapes=work.shapes, values=values)
    return again if len(again[1]) < len(found[1]) else found


def _with_all_results(graph: Graph) -> Graph:
    """The graph with every tensor that no node reads as an output."""
    read = {i for n in graph.nodes for i in n.inputs}
    part = graph.copy()
    part.outputs = [o for n in graph.nodes for o in n.outputs if o and o not in read]
    return part
