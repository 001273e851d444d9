"""What streams and pinned memory give: a model in chunks, every way, and where a claim holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npusim.chip.spec import ChipSpec
from npusim.explore.chunks import (
    WAYS,
    ChunkPipeline,
    ChunkWork,
    Way,
    chunk_times,
    hidden_cycles,
    is_copy,
    union,
)
from npusim.explore.chunks_formula import closed_form
from npusim.program.executable import Executable
from npusim.timeline import OpRecord, Span, Timeline
from npusim.timeline.ablated import Claim
from npusim.timeline.overlapped import ChunkTimes, OverlapCell, OverlapMap, OverlapRow, OverlapStudy

Progress = Callable[[str, int, int], None]  #: stage, done, total

#: Published, without a method: share of copies that is hidden, NPU utilisation.
HIDDEN, UTILISATION = 0.85, 0.90
#: A copy each way over the computing of a chunk, and numbers of chunks.
RATIOS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.1, 1.25, 1.5, 2.0)
COUNTS = (2, 4, 8, 16, 32, 64)


def overlap_study(
    work: ChunkWork,
    chip: ChipSpec,
    *,
    model: str,
    per_chunk: int,
    chunks: int,
    buffers: int = 2,
    streams: int | None = None,
    progress: Progress | None = None,
) -> OverlapStudy:
    """Run the chunks every way.

    Args:
        model, per_chunk: name and samples of a chunk, for the report.
        streams: only the ways over 1 or over 3.

    Raises:
        UnsupportedError: the buffers do not fit the chip's memory.
    """
    times = chunk_times(work, chip)
    ways = [w for w in WAYS if streams in (None, w.streams)]
    rows = []
    for done, way in enumerate(ways):
        if progress is not None:
            progress("ways", done, len(ways))
        timeline = ChunkPipeline(work, chip, way, chunks, buffers).run()
        closed = closed_form(work, times, chip, way, chunks, buffers)
        rows.append(_row(way, timeline, closed))
    if progress is not None:
        progress("ways", len(ways), len(ways))
    study = OverlapStudy(
        model, chip.name, work.exe.precision, per_chunk, chunks, buffers, times, tuple(rows)
    )
    return study


def overlap_map(
    exe: Executable,
    chip: ChipSpec,
    *,
    ratios: Sequence[float] = RATIOS,
    counts: Sequence[int] = COUNTS,
    buffers: int = 2,
    progress: Progress | None = None,
) -> OverlapMap:
    """Three streams and pinned memory, with copies of given lengths around a model."""
    compute = chunk_times(ChunkWork(exe, (("", 1),), (("", 1),)), chip).compute
    way = WAYS[-1]
    cells = []
    for ratio in ratios:
        copied = (("", _bytes_taking(ratio * compute, chip)),)
        work = ChunkWork(exe, copied, copied)
        times = chunk_times(work, chip)
        for chunks in counts:
            timeline = ChunkPipeline(work, chip, way, chunks, buffers).run()
            closed = closed_form(work, times, chip, way, chunks, buffers)
            row = _row(way, timeline, closed)
            cells.append(
                OverlapCell(ratio, chunks, row.hidden, row.utilisation, row.us, row.closed_us)
            )
            if progress is not None:
                progress("lengths and chunks", len(cells), len(ratios) * len(counts))
    return OverlapMap(chip.name, exe.name, compute, buffers, HIDDEN, UTILISATION, tuple(cells))


def _bytes_taking(us: float, chip: ChipSpec) -> int:
    """What a pinned copy of that length carries."""
    seconds = us * 1e-6 - chip.pcie.latency
    return max(1, int(seconds * chip.pcie.bandwidth * chip.pcie.efficiency))


def _row(way: Way, timeline: Timeline, closed_us: float) -> OverlapRow:
    computing = union([op for op in timeline.ops if not is_copy(op)])
    assert timeline.host is not None
    return OverlapRow(
        way=way.name,
        streams=way.streams,
        pinned=way.pinned,
        us=timeline.total_us,
        closed_us=closed_us,
        copy_us=timeline.us(sum(op.cycles for op in timeline.ops if is_copy(op))),
        hidden_us=timeline.us(hidden_cycles(timeline)),
        busy_us=timeline.us(sum(end - start for start, end in computing)),
        host_us=timeline.us(timeline.host.busy),
        spans=tuple(_spans(timeline)),
    )


def _spans(timeline: Timeline) -> list[Span]:
    """A span for every stage of every chunk."""
    stages: dict[tuple[str, int], list[OpRecord]] = {}
    for op in timeline.ops:
        if is_copy(op):
            kind, _, number = op.name.partition(" ")
            stages.setdefault(
                (f"copy {'in' if kind == 'input' else 'out'}", int(number)), []
            ).append(op)
        else:
            stages.setdefault(("compute", op.step), []).append(op)
    return [
        Span(track, str(chunk), min(op.start for op in ops), max(op.end for op in ops))
        for (track, chunk), ops in stages.items()
    ]


# -- the published claim -----------------------------------------------------------------------


def claims_on_study(study: OverlapStudy) -> list[Claim]:
    """The claim beside a model's rows; none without the three streams."""
    best = next((r for r in study.rows if r.streams == 3 and r.pinned), None)
    if best is None:
        return []
    t, n = study.times, study.chunks
    copies = t.copy_in + t.copy_out
    found = (
        f"{_percent(best.hidden)} of the copies hidden, {_percent(best.utilisation)} utilisation "
        f"over three streams from pinned memory. {_hidden_sum(t, n)} {_busy_sum(t, n)} "
    )
    serial = next((r for r in study.rows if r.streams == 1 and r.pinned), None)
    if serial is not None:
        found += (
            f"One stream hides nothing and still reaches {_percent(serial.utilisation)}, as the "
            f"copies are {_percent(copies / t.compute)} of the computing: three streams are "
            f"{serial.us / best.us:.2f}× as fast. "
        )
    pageable = next((r for r in study.rows if r.streams == 3 and not r.pinned), None)
    if pageable is not None:
        found += (
            f"From pageable memory three streams hide {_percent(pageable.hidden)}: each copy holds "
            "the host until it is over."
        )
    return [Claim("streams", _claim(), found.strip())]


def _hidden_sum(t: ChunkTimes, n: int) -> str:
    if t.compute < max(t.copy_in, t.copy_out):
        return (
            f"A copy takes up to {max(t.copy_in, t.copy_out) / t.compute:.2f} times the computing: "
            "what is beyond cannot be hidden."
        )
    return (
        "Computing is the longest stage, so that all copies but the first in and the last out are "
        f"hidden: (N - 1) / N = {n - 1} / {n} = {_percent((n - 1) / n)}; {_percent(HIDDEN)} takes "
        "7 chunks."
    )


def _busy_sum(t: ChunkTimes, n: int) -> str:
    bare = n * t.compute / (t.copy_in + t.copy_out + t.compute + (n - 1) * t.longest)
    return (
        f"Utilisation without any cost of scheduling: N · compute / (in + out + compute + (N - 1) "
        f"· longest) = {n} · {t.compute:.0f} / ({t.copy_in:.0f} + {t.copy_out:.0f} + "
        f"{t.compute:.0f} + {n - 1} · {t.longest:.0f}) = {_percent(bare)}."
    )


def claims_on_map(found: OverlapMap) -> list[Claim]:
    """Where both figures of the claim are reached."""
    parts = []
    for ratio in found.ratios:
        enough = [n for n in found.chunk_counts if found.holds(found.cell(ratio, n))]
        parts.append(f"{ratio:g}: {f'{enough[0]} chunks' if enough else 'never'}")
    most = max(abs(c.closed_us / c.us - 1) for c in found.cells)
    text = (
        f"Copies r times as long as computing, each way. Up to r = 1, hidden = (N - 1) / N, from "
        f"7 chunks above {_percent(HIDDEN)}; utilisation = N / (N + 2r), which reaches "
        f"{_percent(UTILISATION)} from N = 18r. Beyond r = 1 the link is the longest stage: hidden "
        f"= (N - 1) / (N · r), utilisation = N / ((N + 1) · r + 1); however many the chunks, r "
        f"must not exceed 1 / {UTILISATION:g} = {1 / UTILISATION:.2f}. Simulated, the fewest of "
        f"the chunks tried that reach both, by r: {'; '.join(parts)}. The closed form with all "
        f"costs is within {100 * most:.2f} % of every run."
    )
    return [Claim("streams: where", _claim(), text)]


def _claim() -> str:
    return f"{_percent(HIDDEN)} overlap, NPU utilisation above {_percent(UTILISATION)}"


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if round(100 * share, 1) == round(100 * share) else 1}f} %"
