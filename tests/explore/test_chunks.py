"""Chunks over streams: the closed form holds, and the figures add up."""

from __future__ import annotations

import pytest

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions
from npusim.errors import UnsupportedError
from npusim.explore.chunks import (
    WAYS,
    ChunkPipeline,
    ChunkWork,
    chunk_times,
    hidden_cycles,
    is_copy,
)
from npusim.explore.chunks_formula import closed_form
from npusim.program.executable import Executable
from npusim.timeline import Timeline

CHIPS = {name: load_chip(name) for name in ("ascend910a", "ascend910b2")}
WITHIN = 0.02


@pytest.fixture(scope="module", params=CHIPS)
def exe(request: pytest.FixtureRequest) -> Executable:
    model = api.load_model("gemm-1024")
    return api.compile_graph(model.graph, CHIPS[request.param])


def work_of(exe: Executable, bytes_in: int, bytes_out: int) -> ChunkWork:
    return ChunkWork(exe, (("", bytes_in),), (("", bytes_out),))


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("chunks", [1, 2, 7, 20])
def test_the_closed_form(exe: Executable, chunks: int, buffers: int) -> None:
    """Copies from a hundredth to three times as long as computing, which takes 12 to 25 µs."""
    chip = CHIPS[exe.chip]
    rate = chip.pcie.bandwidth * chip.pcie.efficiency * 1e-6
    compute = chunk_times(work_of(exe, 1, 1), chip).compute
    for r_in, r_out in ((0.01, 0.01), (0.5, 0.1), (1, 1), (0.3, 3), (3, 2)):
        work = work_of(exe, int(r_in * compute * rate) + 1, int(r_out * compute * rate) + 1)
        times = chunk_times(work, chip)
        for way in WAYS:
            simulated = ChunkPipeline(work, chip, way, chunks, buffers).run().total_us
            closed = closed_form(work, times, chip, way, chunks, buffers)
            assert closed == pytest.approx(simulated, rel=WITHIN), (way.name, r_in, r_out)


def test_a_whole_model() -> None:
    """Several inputs and outputs, many tasks."""
    chip = CHIPS["ascend910b2"]
    model = api.load_model("bert-tiny")
    work = ChunkWork.of_model(api.compile_graph(model.graph, chip))
    assert len(work.copies_in) > 1 and len(work.copies_out) > 1
    times = chunk_times(work, chip)
    for way in WAYS:
        timeline = ChunkPipeline(work, chip, way, 8, 2).run()
        closed = closed_form(work, times, chip, way, 8, 2)
        assert closed == pytest.approx(timeline.total_us, rel=WITHIN)
        copied = sum(is_copy(op) for op in timeline.ops)
        assert copied == 8 * (len(work.copies_in) + len(work.copies_out))
        assert len(timeline.ops) - copied == 8 * len(work.exe.tasks)


def _stage(timeline: Timeline, name: str) -> list[tuple[int, int]]:
    return [(op.start, op.end) for op in timeline.ops if op.name.split()[0] == name]


def test_buffers_are_not_overwritten(exe: Executable) -> None:
    """Chunk i + k is not copied in before chunk i is computed, nor computed before it is out."""
    chip = CHIPS[exe.chip]
    work = work_of(exe, 2_000_000, 1_000_000)
    for buffers in (1, 2, 4):
        timeline = ChunkPipeline(work, chip, WAYS[-1], 12, buffers).run()
        copied, sent = _stage(timeline, "input"), _stage(timeline, "output")
        tasks = [[op for op in timeline.ops if not is_copy(op) and op.step == i] for i in range(12)]
        computed = [(min(o.start for o in ops), max(o.end for o in ops)) for ops in tasks]
        for i in range(12):
            assert copied[i][1] <= computed[i][0] and computed[i][1] <= sent[i][0]
        for i in range(12 - buffers):
            assert copied[i + buffers][0] >= computed[i][1]
            assert computed[i + buffers][0] >= sent[i][1]


def test_hidden_time(exe: Executable) -> None:
    """One stream hides nothing; three hide all but the first copy in and the last out."""
    chip = CHIPS[exe.chip]
    work = work_of(exe, 100_000, 50_000)
    one, three = (ChunkPipeline(work, chip, way, 10, 2).run() for way in (WAYS[1], WAYS[-1]))
    assert hidden_cycles(one) == 0
    copies = [op for op in three.ops if is_copy(op)]
    shown = sum(op.cycles for op in (copies[0], copies[-1]))
    assert 0 < hidden_cycles(three) <= sum(op.cycles for op in copies) - shown


def test_what_does_not_fit(exe: Executable) -> None:
    chip = CHIPS[exe.chip]
    with pytest.raises(UnsupportedError, match="beside gemm-1024"):
        ChunkPipeline(work_of(exe, chip.hbm.size // 2, 1), chip, WAYS[-1], 4, 2)


def test_models_of_several_streams_are_refused() -> None:
    model = api.load_model("bert-tiny")
    chip = CHIPS["ascend910a"]
    exe = api.compile_graph(model.graph, chip, options=CompileOptions("fp16", streams=2))
    with pytest.raises(UnsupportedError, match="compiled for several streams"):
        ChunkWork.of_model(exe)
