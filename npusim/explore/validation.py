"""Validation: published figures of real chips, each replayed on its own chip.

The shipped figures stand in `configs/validation/*.csv`, one row a figure, with its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from npusim.chip import load_chip
from npusim.data import data_dir
from npusim.explore.anchors import time_models
from npusim.explore.replay import replay
from npusim.explore.replay.workers import Progress
from npusim.frontends.recorded import RecordedOp, chip_of, read_profile
from npusim.frontends.recorded.whole_models import is_model_table, read_models
from npusim.timeline.replayed import ReplayedOp, TimedModel


@dataclass(frozen=True)
class Validation:
    """Figures beside npusim's.

    Attributes:
        chips: replayed operators by chip.
        left_out: rows whose device is no shipped chip for certain.
        models: whole models.
        models_left_out: rows of whole models that npusim cannot be held against: other models
            and precisions, training, devices that are no shipped chip.
    """

    chips: dict[str, list[ReplayedOp]]
    left_out: int
    models: list[TimedModel]
    models_left_out: int


def shipped_figures() -> list[RecordedOp]:
    """The figures that come with npusim."""
    return read_profile(data_dir("configs/validation"))


def validate(
    path: Path | None = None,
    *,
    chip: str = "ascend910-30c",
    jobs: int = 1,
    progress: Progress | None = None,
) -> Validation:
    """Replay figures on their chips.

    Args:
        path: a file or folder; None: the shipped figures, which are single rows of larger
            profiles and so find L2 cold.
        chip: of files that name no device.
    """
    only_models = path is not None and path.is_file() and is_model_table(path)
    ops = [] if only_models else shipped_figures() if path is None else read_profile(path)
    figures, models_left_out = read_models(data_dir("configs/validation") if path is None else path)
    by_chip = _by_chip(ops, chip)
    found = {}
    for name, rows in by_chip.items():
        spec = load_chip(name)
        result = replay(rows, spec, in_sequence=path is not None, jobs=jobs, progress=progress)
        found[name] = result.plain(spec)
    left_out = len(ops) - sum(map(len, by_chip.values()))
    models = time_models(figures, jobs=jobs, progress=progress)
    return Validation(found, left_out, models, models_left_out)


def _by_chip(ops: Sequence[RecordedOp], default: str) -> dict[str, list[RecordedOp]]:
    found: dict[str, list[RecordedOp]] = {}
    for op in ops:
        name = chip_of(op.device) if op.device else default
        if name:
            found.setdefault(name, []).append(op)
    return dict(sorted(found.items()))
