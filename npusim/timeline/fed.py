"""A model fed with images, by DVPP or by the host's CPU: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FeedTimes:
    """A batch's stages, each alone, in µs.

    Attributes:
        copy: to the device; prepare: all else before the NPU's work, the images side by side.
        compute: on the NPU, normalising among it where DVPP feeds.
        between: between the computing of two batches that wait for nothing.
        in_turn: what events and the host add where a batch goes through all stages by itself.
        per_image: of each stage that images share, one image's time over the channels.
    """

    copy: float
    prepare: float
    compute: float
    between: float
    in_turn: float
    per_image: Mapping[str, float]

    @property
    def preprocessing_rate(self) -> float:
        """Images per second of preprocessing alone, batches overlapping."""
        return 1e6 / max(self.per_image.values())


@dataclass(frozen=True)
class FeedRow:
    """A path at one prefetch depth, in the steady state.

    Attributes:
        path: what preprocesses; prefetch: batches prepared ahead of the one that computes.
        step_us: per batch; closed_us: by the closed form.
        bound: the stage that sets the pace, "in turn" without prefetch, "prefetch" where more of
            it would be faster.
        busy: stage → share of its capacity that is used; "NPU" among them.
    """

    path: str
    prefetch: int
    step_us: float
    closed_us: float
    bound: str
    busy: Mapping[str, float]


@dataclass(frozen=True)
class FeedStudy:
    """A model fed both ways.

    Attributes:
        image: width and height of the JPEGs; model_image: of what the model takes.
        jpeg_bytes: of one; workers: on the host.
        dvpp, cpu: stages of the two paths; dvpp is None where the chip's is not described.
        cpu_image_us: one image on one worker.
    """

    model: str
    chip: str
    precision: str
    batch: int
    image: tuple[int, int]
    model_image: tuple[int, int]
    jpeg_bytes: int
    workers: int
    dvpp: FeedTimes | None
    cpu: FeedTimes
    cpu_image_us: float
    rows: tuple[FeedRow, ...]

    def images_per_s(self, row: FeedRow) -> float:
        """Throughput of the model as it is fed."""
        return self.batch * 1e6 / row.step_us

    def row(self, path: str, prefetch: int) -> FeedRow | None:
        """The row whose path begins so."""
        return next(
            (r for r in self.rows if r.path.startswith(path) and r.prefetch == prefetch), None
        )
