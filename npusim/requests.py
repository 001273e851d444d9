"""A sequence of requests of different shapes to one model: compiled once per shape, then reused."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim import api
from npusim.chip import ChipSpec
from npusim.compiler import CompileOptions
from npusim.machine.tasks import Detail
from npusim.program.executable import Executable
from npusim.timeline import RunResult

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Request:
    """One request, and what it took.

    Attributes:
        shapes: as the request gives them.
        compile_s: seconds of this machine to import and compile; None when the shape came before.
        result: its run.
    """

    shapes: Shapes
    compile_s: float | None
    result: RunResult


def run_requests(
    source: str,
    requests: Sequence[Shapes],
    chip: ChipSpec,
    options: CompileOptions,
    *,
    batch: int | None = None,
    seed: int | None = None,
    timing_only: bool = False,
    detail: Detail = "fast",
) -> list[Request]:
    """Run a model once for every request, in order.

    Args:
        source: as `load_model` takes it; requests: shapes of inputs (or sizes, for built-in
            models), over the workload's own.

    Raises:
        NpusimError: as `load_model`, `compile_graph` and `run`.
    """
    cache: dict[frozenset[tuple[str, tuple[int, ...]]], tuple[api.LoadedModel, Executable]] = {}
    done = []
    for shapes in requests:
        key = frozenset((name, tuple(dims)) for name, dims in shapes.items())
        seconds = None
        if key not in cache:
            start = time.perf_counter()
            model = api.load_model(
                source, batch=batch, shapes=shapes, seed=seed, precision=options.precision
            )
            cache[key] = model, api.compile_graph(model.graph, chip, options=options)
            seconds = time.perf_counter() - start
        model, exe = cache[key]
        inputs = None if timing_only else api.make_inputs(model)
        result = api.run(
            exe, chip, inputs=inputs, timing_only=timing_only, detail=detail, batch=model.batch
        )
        done.append(Request(shapes, seconds, result))
    return done
