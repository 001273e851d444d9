"""The short Python API: load a chip, load a model, compile, run, look.

import npusim
chip = npusim.load_chip("ascend910a")
model = npusim.load_model("resnet50", batch=1)
exe = npusim.compile_graph(model.graph, chip, precision="fp16")
result = npusim.run(exe, chip, inputs=npusim.make_inputs(model))
print(result, result.timeline.to_frame()[0])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.chip import ChipSpec, load_chip
from npusim.compiler import TILING_LEVEL, CompileOptions
from npusim.compiler import compile_graph as _compile
from npusim.errors import ModelError, UnsupportedError
from npusim.frontends.shipped import ShippedData, shipped_data
from npusim.frontends.workload import load_workload
from npusim.ir import Graph
from npusim.machine import run as machine_run
from npusim.machine.arena import Arena
from npusim.machine.entries import Observer
from npusim.machine.functional import FunctionalExecutor
from npusim.machine.host import HostPlan
from npusim.machine.loaded import LoadedExecutable
from npusim.machine.run import Keep, run_executable
from npusim.machine.tasks import Detail
from npusim.models import random_inputs
from npusim.program.executable import Executable, Task
from npusim.timeline import MemoryUse, RunResult, TensorCheck

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from npusim.explore.tiling_search import TilingSearch
    from npusim.sanitize import SanitizeReport, StreamSanitizer

__all__ = [
    "CompileOptions",
    "HostPlan",
    "LoadedModel",
    "Progress",
    "RunInterrupted",
    "RunResult",
    "TensorCheck",
    "check",
    "compile_graph",
    "load_chip",
    "load_model",
    "make_inputs",
    "run",
    "sanitize",
    "search_tilings",
]

Progress = Callable[[str, int, int], None]  #: stage, done, total


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to compile.

    Attributes:
        precision: what the workload asks for ("fp16" unless it says otherwise).
        onnx_path: the file it came from, None for built-in models.
        given: inputs that it was loaded with.
        requests: shapes of the requests that the workload lists, () for none.
    """

    name: str
    graph: Graph
    batch: int
    precision: str
    seed: int
    source: str
    onnx_path: Path | None = None
    given: Mapping[str, np.ndarray] = field(default_factory=dict)
    requests: tuple[Mapping[str, tuple[int, ...]], ...] = ()


def load_model(
    source: str,
    *,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int | None = None,
    precision: str | None = None,
    inputs: Mapping[str, ArrayLike] | None = None,
) -> LoadedModel:
    """Load a workload, a built-in model or an .onnx file.

    Args:
        source: workload name, built-in model name, path of a workload YAML or of an .onnx file.
        batch, shapes: bind the model's batch and input shapes.
        seed: of random weights and inputs; precision: overrides the workload's.
        inputs: some of the inputs, instead of random ones; shapes may follow from them.

    Raises:
        ModelError: unknown name, unreadable file, shapes that do not fit.
    """
    workload, graph = load_workload(
        source, batch=batch, shapes=shapes, seed=seed, precision=precision, inputs=inputs
    )
    path = Path(workload.source)
    return LoadedModel(
        name=workload.name,
        graph=graph,
        batch=workload.batch or 1,
        precision=workload.precision,
        seed=workload.seed,
        source=workload.source,
        onnx_path=path if path.suffix == ".onnx" else None,
        given=_typed(graph, inputs or {}),
        requests=workload.requests,
    )


def _typed(graph: Graph, inputs: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Arrays of the inputs' types and shapes.

    Raises:
        ModelError: the model has no such input, or it has another number of elements.
    """
    found = {}
    for name, value in inputs.items():
        if name not in graph.inputs:
            raise ModelError(
                f"the model has no input {name!r}", ", ".join(graph.inputs), "use one of these"
            )
        t, array = graph.type_of(name), np.asarray(value)
        if array.size != t.size:
            raise ModelError(
                f"input {name!r} is given {array.size} elements",
                f"{t.size}, of shape {t.shape}",
                f"give as many, or another shape: --shape {name}=…",
            )
        found[name] = array.astype(t.dtype.np).reshape(t.shape)
    return found


def make_inputs(model: LoadedModel) -> dict[str, np.ndarray]:
    """Inputs for a model: those that ship beside its file when their shapes fit the graph's,
    else random ones, deterministic from its seed."""
    shipped = _shipped(model)
    found = shipped.inputs if shipped is not None else random_inputs(model.graph, model.seed)
    return {**found, **model.graph.assumed, **model.given}


def _shipped(model: LoadedModel) -> ShippedData | None:
    """The model's own test data, when it fits the shapes the model was loaded with."""
    graph = model.graph
    data = shipped_data(model.onnx_path, graph.inputs, graph.outputs)
    if data is None:
        return None
    fits = all(graph.type_of(n).shape == a.shape for n, a in data.inputs.items())
    return data if fits else None


def compile_graph(
    graph: Graph,
    chip: ChipSpec,
    *,
    precision: str = "fp16",
    options: CompileOptions | None = None,
    tiling_cache: Path | None = None,
) -> Executable:
    """Compile a graph for a chip.

    Args:
        options: everything that the compiler can be asked; instead of `precision` alone. From
            level 3 on, tilings are searched too (see `search_tilings`).
        tiling_cache: of that search.

    Raises:
        UnsupportedError: something the chip or npusim cannot do; names the node.
    """
    chosen = options or CompileOptions(precision)
    exe = _compile(graph, chip, chosen)
    if chosen.level < TILING_LEVEL:
        return exe
    return search_tilings(exe, chip, cache=tiling_cache).executable


def search_tilings(
    exe: Executable, chip: ChipSpec, *, cache: Path | None = None, progress: Progress | None = None
) -> TilingSearch:
    """The executable with the tilings that the machine, not an estimate, finds fastest.

    Args:
        cache: folder of what was found before (default: the user's cache folder).
    """
    from npusim.explore.tiling_search import search_tilings as search

    return search(exe, chip, cache=cache, progress=progress)


def sanitize(
    exe: Executable, chip: ChipSpec, *, progress: Progress | None = None
) -> SanitizeReport:
    """What the sanitizer finds in the kernels of an executable; nothing is run or timed."""
    from npusim.sanitize import sanitize_executable

    return sanitize_executable(exe, chip, progress)


def stream_sanitizer(exe: Executable) -> StreamSanitizer:
    """An observer for `run` that finds tasks which touch the same memory in no order."""
    from npusim.sanitize import StreamSanitizer

    home = LoadedExecutable(exe)
    known = [home.range(name) for name in (*exe.constants, *exe.inputs)]
    return StreamSanitizer(exe.name, known)


def run(
    exe: Executable,
    chip: ChipSpec,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    timing_only: bool = False,
    tile_level: bool = False,
    detail: Detail = "fast",
    batch: int = 1,
    trace_ops: Sequence[str] = (),
    keep_tensors: bool = False,
    progress: Progress | None = None,
    options: Mapping[str, object] | None = None,
    host: HostPlan | None = None,
    keep: Keep = "full",
    observer: Observer | None = None,
) -> RunResult:
    """Run an executable: timed by the machine, and computed unless `timing_only`.

    Args:
        inputs: one array per graph input; needed unless timing only.
        tile_level: execute every instruction of every kernel on real bytes.
        detail: "fast" times identical launches once; "full" simulates each in place.
        batch: samples per run, for the throughput.
        trace_ops: tasks whose core pipes are kept as spans.
        keep_tensors: keep every task's outputs (for checks of intermediate tensors).
        host: how the host runs the model, and how often (default: once, the device alone).
        keep: "full" keeps every op in the timeline, "summary" their sums by kind.
        observer: told of tasks and events as they are queued and begun.

    Raises:
        ModelError: inputs that do not fit. DeadlockError, AccountingError: the simulation
            cannot go on, or does not add up. RunInterrupted: Ctrl-C, with what there is by then.
    """
    executor, kept = None, {}
    if not timing_only:
        arena = Arena(exe, channels_last=not tile_level)
        arena.load_constants()
        arena.load_inputs(inputs or {})

        def keep_outputs(task: Task, arena: Arena) -> None:
            for name in task.outputs:
                kept[name] = np.array(arena.read(name))

        executor = FunctionalExecutor(
            exe, chip, arena, tile_level, keep_outputs if keep_tensors else None
        )
    level = "timing only" if timing_only else ("tile" if tile_level else "operator")
    finish = partial(
        _result, exe, chip, batch, {"detail": detail, "level": level, **(options or {})}
    )
    try:
        finished = run_executable(
            exe,
            chip,
            executor,
            detail,
            trace_ops,
            None if progress is None else lambda done, total: progress("run", done, total),
            host=host,
            keep=keep,
            observer=observer,
        )
    except machine_run.RunInterrupted as stop:
        raise RunInterrupted(finish(stop.finished)) from None
    result = finish(finished)
    if timing_only:
        return result
    return replace(result, outputs=arena.outputs(), tensors=kept)


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run. `result` has the timeline so far, marked as partial; no outputs."""

    def __init__(self, result: RunResult) -> None:
        super().__init__("interrupted")
        self.result = result


def _result(
    exe: Executable,
    chip: ChipSpec,
    batch: int,
    options: dict[str, object],
    finished: machine_run.DeviceRun,
) -> RunResult:
    return RunResult(
        model=exe.name,
        chip=chip.name,
        precision=exe.precision,
        batch=batch,
        options=options,
        timeline=finished.timeline,
        memory=MemoryUse(
            exe.memory.peak_bytes, exe.memory.weight_bytes, exe.memory.activation_bytes
        ),
        speed=finished.speed,
        flops=sum(t.flops for t in exe.tasks) * finished.timeline.steps,
        peak_flops=_peak_flops(exe, chip),
        peak_hbm=chip.hbm.bandwidth,
        notes=list(exe.notes),
    )


def _peak_flops(exe: Executable, chip: ChipSpec) -> float:
    """The chip's peak in the type that does most of the work."""
    flops: dict[tuple[str, bool], int] = {}
    for t in exe.tasks:
        key = (t.compute_dtype.value, t.uses_cube)
        flops[key] = flops.get(key, 0) + t.flops
    dtype, cube = max(flops, key=lambda k: flops[k], default=("float16", True))
    return chip.cube_flops(dtype) if cube else chip.vector_flops(dtype)


def check(
    model: LoadedModel,
    exe: Executable,
    result: RunResult,
    inputs: Mapping[str, np.ndarray],
    *,
    every_tensor: bool = False,
) -> RunResult:
    """The result with its outputs compared with what they should be.

    The reference is the expected outputs that ship beside the model's file, when the run used the
    inputs that ship with them; else onnxruntime on the same inputs.

    Args:
        every_tensor: also compare intermediate tensors (the run needs `keep_tensors`).

    Raises:
        UnsupportedError: onnxruntime is not installed, or the run computed nothing.
    """
    from npusim.frontends.check import reference_values

    if not result.outputs:
        raise UnsupportedError(
            "a check of a run without outputs", "functional runs", "leave --timing-only out"
        )
    shipped = None if every_tensor else _shipped(model)
    if shipped is not None and _same(inputs, shipped.inputs):
        found = {t: compare(result.outputs[t], r) for t, r in shipped.outputs.items()}
        return replace(result, check=found, check_reference=f"{shipped.folder.name} of the model")
    wanted = [*result.outputs, *(result.tensors if every_tensor else ())]
    reference, name = reference_values(model.graph, model.onnx_path, inputs, wanted)
    values = {**result.tensors, **result.outputs}
    found = {t: compare(values[t], r) for t, r in reference.items() if t in values}
    return replace(result, check=found, check_reference=name)


def _same(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def compare(value: np.ndarray, reference: np.ndarray) -> TensorCheck:
    """Largest absolute and relative difference, and the cosine of the angle between.

    Infinities and NaNs that both have in the same places count as equal; others make the
    differences infinite and the cosine 0.
    """
    a = np.asarray(value, np.float64).ravel()
    b = np.asarray(reference, np.float64).ravel()
    strange = ~(np.isfinite(a) & np.isfinite(b))
    if strange.any():
        if not np.array_equal(a[strange], b[strange], equal_nan=True):
            return TensorCheck(float("inf"), float("inf"), 0.0)
        a, b = a[~strange], b[~strange]
    if a.size == 0:
        return TensorCheck(0.0, 0.0, 1.0)
    worst = float(np.abs(a - b).max())
    scale = float(np.abs(b).max())
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b / norm) if norm > 0 else (1.0 if worst == 0 else 0.0)
    return TensorCheck(worst, worst / scale if scale > 0 else worst, cosine)


def summary(result: RunResult) -> dict[str, Any]:
    """The run as plain data: what `--json` writes."""
    from npusim.profiling.json_export import result_json

    return result_json(result)
