"""Whole models against published throughputs: compiled, timed, and set beside them."""

from __future__ import annotations

from functools import partial

from npusim.chip import load_chip
from npusim.compiler import CompileOptions, compile_graph
from npusim.explore.replay.workers import Progress, workers
from npusim.frontends.recorded.whole_models import RecordedModel
from npusim.machine.run import run_executable
from npusim.models import build_model
from npusim.timeline.replayed import TimedModel


def time_models(
    figures: list[RecordedModel], *, jobs: int = 1, progress: Progress | None = None
) -> list[TimedModel]:
    """Each figure's model on its chip, in fp16, by npusim's own compiler and kernels.

    Small channels are on where the published ATC command has them on. The simulated time is the
    device's alone: from the first task's launch to the last one's end.
    """
    with workers(jobs, progress) as each:
        seconds = each("models", partial(_seconds), figures)
    return [
        TimedModel(
            name=f.name,
            chip=f.chip,
            model=_label(f),
            batch=f.batch,
            measured_per_s=f.samples_per_s,
            simulated_per_s=f.batch / s,
            source=f.source,
        )
        for f, s in zip(figures, seconds, strict=True)
    ]


def _label(figure: RecordedModel) -> str:
    options = ["small_channel"] if figure.small_channel else []
    return " ".join([figure.model, *(f"{k}={v}" for k, v in figure.sizes), *options])


def _seconds(figure: RecordedModel) -> float:
    chip = load_chip(figure.chip)
    shapes = {name: (size,) for name, size in figure.sizes}
    graph = build_model(figure.model, batch=figure.batch, shapes=shapes)
    options = CompileOptions(precision="fp16", small_channel=figure.small_channel)
    exe = compile_graph(graph, chip, options)
    return run_executable(exe, chip).timeline.total_us / 1e6
