"""DVPP feeding a model against the host's CPU doing so, by prefetch depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, gcd

from npusim.chip.spec import ChipSpec
from npusim.explore.image_feed import COMPUTE as COMPUTE_STREAM
from npusim.explore.image_feed import (
    Feed,
    FeedWork,
    busy_shares,
    capacities,
    prepared_alone,
    step_ends,
    worker_cycles,
)
from npusim.machine.copies import copy_time
from npusim.machine.dvpp import JPEGD, VPC, decode_cycles, dvpp_of, resize_cycles
from npusim.machine.entries import CopyKind
from npusim.timeline.ablated import Claim
from npusim.timeline.fed import FeedRow, FeedStudy, FeedTimes

Progress = Callable[[str, int, int], None]  #: stage, done, total

CLAIM = 4.0  #: published, without a method: image preprocessing so many times faster
PREFETCH = (0, 1, 2, 4)


def feed_study(
    work: FeedWork,
    chip: ChipSpec,
    *,
    model: str,
    prefetch: Sequence[int] = PREFETCH,
    workers: int | None = None,
    progress: Progress | None = None,
) -> FeedStudy:
    """Feed the model both ways, at every prefetch depth.

    Args:
        model: its name, for the report.
        workers: of the host (default: the chip's host has `host.preprocessing.workers`).
    """
    count = workers or chip.host.preprocessing.workers
    paths: list[tuple[str, int | None]] = [(f"CPU, {count} workers", count)]
    if chip.dvpp is not None:
        paths.insert(0, ("DVPP", None))
    rows: list[FeedRow] = []
    times: dict[int | None, FeedTimes] = {}
    for path, on_host in paths:
        alone = times[on_host] = feed_times(work, chip, on_host)
        for depth in prefetch:
            before, counted = 2 * depth + 4, _window(work, chip, on_host)
            timeline = Feed(work, chip, depth, before + counted, on_host).run()
            ends = step_ends(timeline)
            step = (ends[-1] - ends[before - 1]) / counted
            bounds = closed_form(alone, depth, work.batch)
            bound = max(bounds, key=lambda name: bounds[name])
            busy = busy_shares(timeline, chip, work, on_host, step)
            rows.append(FeedRow(path, depth, timeline.us(step), bounds[bound], bound, busy))
            if progress is not None:
                progress("prefetch depths", len(rows), len(paths) * len(prefetch))
    shape = work.model.buffers[work.model.inputs[0]].shape
    images = work.images
    return FeedStudy(
        model=model,
        chip=chip.name,
        precision=work.model.precision,
        batch=work.batch,
        image=(images.width, images.height),
        model_image=(shape[3], shape[2]),
        jpeg_bytes=images.nbytes,
        workers=count,
        dvpp=times.get(None),
        cpu=times[count],
        cpu_image_us=1e6 * chip.seconds(worker_cycles(work, chip)),
        rows=tuple(rows),
    )


def _window(work: FeedWork, chip: ChipSpec, workers: int | None) -> int:
    """How many batches to time: 8 or more, a whole number of waves through the slowest stage.

    Images go through a stage in waves of as many as it has channels, and all of a wave end at once.
    """
    channels = workers or dvpp_of(chip).jpegd.channels
    waves = channels // gcd(work.batch, channels)
    return ceil(8 / waves) * waves


def feed_times(work: FeedWork, chip: ChipSpec, workers: int | None) -> FeedTimes:
    """The stages of a batch, each alone: computing as in a run in turn, the others by formula."""
    timeline = Feed(work, chip, 0, 4, workers).run()
    last = [op for op in timeline.ops if op.stream == COMPUTE_STREAM and op.step == 3]
    compute = max(op.end for op in last) - min(op.start for op in last)
    nbytes = work.batch * work.images.nbytes if workers is None else work.input_bytes
    copy = copy_time(chip, CopyKind.H2D, nbytes).total
    pixels = work.images.pixels
    if workers is None:
        image = {
            JPEGD: decode_cycles(chip, pixels),
            VPC: resize_cycles(chip, pixels, work.model_pixels),
        }
    else:
        image = {"CPU": worker_cycles(work, chip)}
    s, h = chip.scheduler, chip.host
    if workers is None:
        in_turn = 4 * s.event + s.gap + 2 * h.sync + h.call + h.graph_launch
        between = max(s.gap, s.event)
    else:
        in_turn = 3 * s.event + h.sync + h.call
        between = max(s.gap, s.event) + s.event
    room = capacities(chip, workers)
    shared = {stage: timeline.us(cycles / room[stage]) for stage, cycles in image.items()}
    return FeedTimes(
        copy=timeline.us(copy),
        prepare=timeline.us(prepared_alone(chip, work, workers)),
        compute=timeline.us(compute),
        between=1e6 * between,
        in_turn=1e6 * in_turn,
        per_image={**shared, "link": timeline.us(copy) / work.batch},
    )


def closed_form(t: FeedTimes, prefetch: int, batch: int) -> dict[str, float]:
    """What a batch takes at least, in µs of the steady state, by what binds; the step is the most.

    A batch's preparation waits for the computing of the one before the p it may be ahead of: p + 1
    batches go once around copy, preparation and computing together. No stage does more than it can:

        step = max(compute, batch · per image, (copy + prepare + compute) / (p + 1))
    """
    around = t.copy + t.prepare + t.compute + t.in_turn
    stages = {stage: batch * us for stage, us in t.per_image.items()}
    turn = "prefetch" if prefetch else "in turn"
    return {"NPU": t.compute + t.between, **stages, turn: around / (prefetch + 1)}


# -- the published claim -----------------------------------------------------------------------


def claims_on(study: FeedStudy) -> list[Claim]:
    """The claim beside the rates of preprocessing alone, and beside the fed model."""
    claim = f"image preprocessing {CLAIM:g} × faster"
    if study.dvpp is None:
        text = f"The DVPP of {study.chip} is not described: nothing to hold the claim against."
        return [Claim("DVPP", claim, text)]
    dvpp, cpu = study.dvpp.preprocessing_rate, study.cpu.preprocessing_rate
    one = 1e6 / study.cpu_image_us
    per_image = study.dvpp.per_image
    slowest = max(per_image, key=lambda stage: per_image[stage])
    width, height = study.image
    text = (
        f"Preprocessing alone: DVPP {dvpp:,.0f} images/s of {width}×{height} ({slowest} is its "
        f"slowest), {study.workers} workers {cpu:,.0f}, at {study.cpu_image_us / 1e3:.1f} ms an "
        f"image each: {dvpp / cpu:.1f}×. {dvpp:,.0f} / ({CLAIM:g} · {one:.1f}) = "
        f"{dvpp / CLAIM / one:.1f} workers make it {CLAIM:g}×. "
    )
    deepest = max(r.prefetch for r in study.rows)
    fast, slow = study.row("DVPP", deepest), study.row("CPU", deepest)
    if fast is not None and slow is not None:
        text += (
            f"The model as it is fed, prefetch {deepest}: {study.images_per_s(fast):,.0f} images/s "
            f"against {study.images_per_s(slow):,.0f}, {slow.step_us / fast.step_us:.1f}×, as "
            f"{fast.bound} and {slow.bound} bind."
        )
    return [Claim("DVPP", claim, text.strip())]
