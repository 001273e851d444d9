"""The rows of an ablation, and the claims held against them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import PASSES, CompileOptions
from npusim.compiler.rewrite import Kind
from npusim.errors import UnsupportedError
from npusim.explore import ablation
from npusim.explore.ablation import REUSE, SEARCH, TWIN, ablate, optional_passes, steps, work_of
from npusim.explore.published_claims import claims_on
from npusim.timeline.ablated import Ablation, AblationRow

CHIP = load_chip("ascend910a")
MODEL = api.load_model("bert-tiny")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    return ablate(
        MODEL.graph, CHIP, name="bert-tiny", batch=1, precision="fp16",
        cache=tmp_path_factory.mktemp("tilings"),
    )  # fmt: skip


def test_steps_switch_on_one_thing_at_a_time() -> None:
    rows = steps("fp16")
    names = optional_passes()
    assert names == list(dict.fromkeys(p.name for p in PASSES if p.kind is not Kind.NEEDED))
    assert [r.name for r in rows] == [
        "O0, fp32", "+ fp16", *(f"+ {n}" for n in names), REUSE, SEARCH, TWIN,
    ]  # fmt: skip
    assert rows[0].options == CompileOptions("fp32", 2, frozenset(names), False)
    for before, after, name in zip(rows[1:], rows[2:], names, strict=False):
        assert before.options.disabled - after.options.disabled == {name}
        assert replace(after.options, disabled=before.options.disabled) == before.options
    assert rows[-2].search and rows[-2].options == rows[-3].options == CompileOptions("fp16")
    assert rows[-1].twin and rows[-1].options == CompileOptions("fp32")
    plain = steps("fp32", search=False)
    assert [r.name for r in plain] == ["O0, fp32", *(f"+ {n}" for n in names), REUSE]


def test_rows_are_what_the_options_give(found: Ablation) -> None:
    for options, step in ((CompileOptions("fp16"), REUSE), (CompileOptions("fp32"), TWIN)):
        exe = api.compile_graph(MODEL.graph, CHIP, options=options)
        run = api.run(exe, CHIP, timing_only=True).timeline
        row = found.row(step)
        assert row is not None
        assert (row.kernels, row.us) == (len(exe.tasks), run.total_us)
        assert row.hbm_bytes == sum(op.bytes_hbm for op in run.ops)
        assert row.memory_bytes == row.memory_reused == exe.memory.peak_bytes
    ladder = found.ladder
    assert [r.step for r in ladder] == [r.step for r in found.rows[:-1]]
    assert all(b.us <= a.us for a, b in pairwise(ladder))
    assert all(r.least_bytes <= r.reused_bytes <= r.activation_bytes for r in found.rows)
    level0 = api.compile_graph(MODEL.graph, CHIP, options=CompileOptions("fp32", 0))
    assert ladder[0].kernels == len(level0.tasks)


def test_the_work_is_the_executables(found: Ablation) -> None:
    exe = api.compile_graph(MODEL.graph, CHIP, options=CompileOptions("fp32", 0))
    assert found.flops == 2 * work_of(MODEL.graph).macs == 2 * sum(t.macs for t in exe.tasks)


def test_checks_every_row(tmp_path: Path) -> None:
    seen = []

    def check(exe):
        seen.append(exe.precision)
        return "1e-3", exe.precision == "fp16"

    a = ablate(
        api.load_model("gemm", batch=1).graph, CHIP, name="gemm", batch=1, precision="fp16",
        check=check, reference="it", cache=tmp_path,
    )  # fmt: skip
    assert seen == ["fp32", *["fp16"] * (len(a.rows) - 2), "fp32"]
    assert [r.failed for r in a.rows] == [p == "fp16" for p in seen]
    assert a.reference == "it"


def test_memory_that_does_not_fit_is_timed_all_the_same(tmp_path: Path) -> None:
    small = CHIP.model_copy(update={"hbm": CHIP.hbm.model_copy(update={"size": 10 * 2**20})})
    a = ablate(
        MODEL.graph, small, name="bert-tiny", batch=1, precision="fp16", search=False,
        cache=tmp_path,
    )  # fmt: skip
    assert a.hbm_size == 10 * 2**20 < a.rows[0].memory_bytes
    assert all(r.us > 0 for r in a.rows)


def test_a_row_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compile_watched = ablation.compile_watched

    def refuse(graph, chip, options):
        if options.precision == refused:
            raise UnsupportedError("no fp32 here", "fp16", "use fp16")
        return compile_watched(graph, chip, options)

    monkeypatch.setattr(ablation, "compile_watched", refuse)
    how = {"name": "bert-tiny", "batch": 1, "cache": tmp_path, "search": False}
    refused = "fp32"
    a = ablate(MODEL.graph, CHIP, precision="fp16", **how)
    assert [r.reason for r in a.rows if r.reason] == ["no fp32 here"] * 2
    assert a.ladder[0].step == "+ fp16" and a.row(TWIN) is None
    assert [c.topic for c in claims_on(a)] == ["memory reuse"]
    with pytest.raises(UnsupportedError, match="no fp32"):
        ablate(MODEL.graph, CHIP, precision="fp32", **how)


# -- claims ------------------------------------------------------------------------------------


def _resnet(fp32_cube: float) -> Ablation:
    """Rows made by hand, with round numbers."""
    gb = 10**9
    rows = (
        AblationRow("O0, fp32", 279, 278, gb, 60 * gb, 3 * gb, 2 * gb, 120 * gb, 100_000.0),
        AblationRow("+ fp16", 280, 279, gb // 2, 30 * gb, 2 * gb, gb, 60 * gb, 50_000.0),
        AblationRow("+ fusion", 70, 69, gb // 2, 10 * gb, gb, gb, 20 * gb, 20_000.0),
        AblationRow(REUSE, 70, 69, gb // 2, gb, gb, gb, 14 * gb, 16_000.0),
        AblationRow(TWIN, 70, 69, gb, 2 * gb, 2 * gb, 2 * gb, 28 * gb, 48_000.0, twin=True),
    )
    return Ablation(
        "resnet50", 256, "a chip", "fp16", 175, 2 * 4_100_000_000 * 256, 262.4e12, fp32_cube,
        32 * 2**30, 1.4e12, "", rows,
    )  # fmt: skip


def test_claims_with_their_arithmetic() -> None:
    claims = {c.topic: c for c in claims_on(_resnet(65.6e12))}
    operators = claims["fusion: operators"]
    assert "158 → 72 (54 % fewer)" in operators.claim
    assert "175 in the model; 280 → 70 after lowering (75 % fewer)" in operators.found
    latency = claims["fusion: latency"].found
    assert "50.0 ms → 20.0 ms by fusion (2.5×), 16.0 ms with memory reuse" in latency
    # 4.1e9 · 2 · 256 / 3.2 ms = 656 TFLOP/s; / 262.4 TFLOP/s = 8.0 ms
    assert "4.10 GMAC · 2 · 256 = 2.10 TFLOP in 3.2 ms are 656 TFLOP/s, 2.5 times" in latency
    assert "at the peak it takes 8.0 ms" in latency
    assert "8.7 ms would be 241 TFLOP/s, 92 % of the peak" in latency
    assert "14.0 GB that the fused model moves take 10.0 ms at 1.4 TB/s" in latency
    assert "90 % less, and 0 % above" in claims["memory reuse"].found
    assert "1.25× the speed" in claims["memory reuse"].found
    assert "2,500 MB → 1,500 MB (40 % less)" in claims["fusion: memory"].found
    precision = claims["precision"].found
    assert "3.0× the speed of fp32" in precision and "0.50× the memory" in precision
    assert "262 TFLOP/s in fp16 and 66 in fp32: 4× where the cube binds" in precision


def test_a_cube_without_fp32() -> None:
    precision = claims_on(_resnet(0.0))[-1].found
    assert "The cube has no fp32" in precision and "at 43.7 of the cube's 262" in precision


def test_claims_of_resnet_are_not_held_against_other_batches() -> None:
    topics = [c.topic for c in claims_on(replace(_resnet(1e12), batch=128))]
    assert topics == ["memory reuse", "precision"]
