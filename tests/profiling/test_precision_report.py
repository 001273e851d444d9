"""Where an error jumps, and the tables of `npusim precision`."""

from __future__ import annotations

import pytest
from rich.console import Console

from npusim.profiling.precision_report import (
    ModeReport,
    TensorError,
    first_jump,
    mode_notes,
    print_modes,
)


def tensors(*errors: float) -> tuple[TensorError, ...]:
    return tuple(TensorError(f"t{i}", f"n{i}", "Conv+Relu", e, i == len(errors) - 1)
                 for i, e in enumerate(errors))  # fmt: skip


@pytest.mark.parametrize(
    ("errors", "at", "before"),
    [
        ((0.0, 1e-4, 9e-4), None, 0.0),  # below the floor, however steep
        ((5e-4, 1.1e-3, 3e-3), None, 0.0),  # grows, never by four
        ((5e-4, 1.9e-3, 9e-1, 1.0), 2, 1.9e-3),
        ((2e-3, 1e-3), 0, 0.0),  # the first of all
        ((5e-4, float("inf")), 1, 5e-4),
        ((), None, 0.0),
    ],
)
def test_first_jump(errors: tuple[float, ...], at: int | None, before: float) -> None:
    found = first_jump(tensors(*errors), 1e-3)
    if at is None:
        assert found is None
    else:
        assert found is not None and (found.tensor.name, found.before) == (f"t{at}", before)


def report(mode: str, narrow: str, errors: tuple[float, ...], **more: object) -> ModeReport:
    known = {
        "label": mode[:5], "same_as": "", "us": 12.5, "weight_bytes": 2048,
        "activation_bytes": 1024, "casts": 0, "tasks": 9, "wide": 4, "notes": ("everywhere",),
    }  # fmt: skip
    return ModeReport(mode=mode, narrow=narrow, tensors=tensors(*errors), **{**known, **more})


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    modes = [
        report("must_keep_origin_dtype", "float32", (0.0, 0.0, 1e-7)),
        report("allow_mix_precision", "float16", (1e-4, 0.5), us=6.25, casts=3, notes=("lists",)),
        report("force_fp16", "float16", (1e-4, 0.5), us=6.25, same_as="allow_mix_precision"),
    ]
    console = Console(width=100, highlight=False)
    print_modes(modes, console, heading=[("model", "m")], every_tensor=True)
    text = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "allow_mix_precision 6.25 µs -50.0 % 2.0 KiB 1.0 KiB 4/9 3 5.0e-01" in rows
    assert "allow_mix_precision 2 t1 5.0e-01 t1, Conv+Relu 1.0e-04 5.0e-01" in rows
    assert "force_fp16: the same tasks as allow_mix_precision." in rows
    assert "t2 Conv+Relu 1.0e-07 ·" in rows  # fused away in the other
    assert mode_notes(modes) == [
        "must_keep_origin_dtype, force_fp16: everywhere", "allow_mix_precision: lists",
    ]  # fmt: skip
    assert mode_notes(modes[::2]) == []
