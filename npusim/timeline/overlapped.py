"""Copies, computing and copies back in chunks, over one stream or three: plain data."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.timeline.timeline import Span


@dataclass(frozen=True)
class OverlapRow:
    """N chunks, run one way.

    Attributes:
        way: how, in words; streams: over how many; pinned: the host's memory is page-locked.
        us: the whole run; closed_us: what the closed form gives.
        copy_us: of all copies; hidden_us: of them while an AI Core task ran.
        busy_us: in which an AI Core task ran; host_us: in which the host worked.
        spans: "copy in", "compute", "copy out" of every chunk, by its number, in cycles.
    """

    way: str
    streams: int
    pinned: bool
    us: float
    closed_us: float
    copy_us: float
    hidden_us: float
    busy_us: float
    host_us: float
    spans: tuple[Span, ...] = ()

    @property
    def hidden(self) -> float:
        """Share of the copies' time that lies under computing: the overlap ratio."""
        return self.hidden_us / self.copy_us if self.copy_us else 0.0

    @property
    def utilisation(self) -> float:
        """Share of the run in which the AI Cores worked."""
        return self.busy_us / self.us if self.us else 0.0


@dataclass(frozen=True)
class ChunkTimes:
    """A chunk's stages, each alone on the device, in µs; `pageable_…`: by way of a staging buffer.

    Attributes:
        cold: what the first chunk computes longer, its weights not being in L2.
        bytes_in, bytes_out: that a chunk copies.
    """

    copy_in: float
    compute: float
    cold: float
    copy_out: float
    pageable_in: float
    pageable_out: float
    bytes_in: int
    bytes_out: int

    @property
    def longest(self) -> float:
        """The stage that a perfect pipeline waits for."""
        return max(self.copy_in, self.compute, self.copy_out)


@dataclass(frozen=True)
class OverlapStudy:
    """A model in chunks on a chip, every way that was asked for.

    Attributes:
        buffers: chunks that have input and output buffers on the device at one time.
        per_chunk: samples; rows: the first is the slowest way.
    """

    model: str
    chip: str
    precision: str
    per_chunk: int
    chunks: int
    buffers: int
    times: ChunkTimes
    rows: tuple[OverlapRow, ...]

    def saved(self, row: OverlapRow) -> float:
        """(serial - this) / (serial - ideal), of the row's kind of memory: serial is the stages of
        all chunks one after another, ideal the longest stage of each and nothing else."""
        t = self.times
        copies = (t.copy_in, t.copy_out) if row.pinned else (t.pageable_in, t.pageable_out)
        serial = self.chunks * (sum(copies) + t.compute)
        return (serial - row.us) / (serial - self.chunks * max(*copies, t.compute))


@dataclass(frozen=True)
class OverlapCell:
    """Three streams, pinned, with copies of a given length.

    Attributes:
        ratio: a copy, each way, over the computing of a chunk.
        hidden, utilisation: as of a row; us, closed_us: simulated and by the closed form.
    """

    ratio: float
    chunks: int
    hidden: float
    utilisation: float
    us: float
    closed_us: float


@dataclass(frozen=True)
class OverlapMap:
    """Where a published overlap holds: chunks and lengths of copies, on one chip.

    Attributes:
        kernel: what computes; compute_us: per chunk.
        target_hidden, target_utilisation: what is claimed.
    """

    chip: str
    kernel: str
    compute_us: float
    buffers: int
    target_hidden: float
    target_utilisation: float
    cells: tuple[OverlapCell, ...]

    @property
    def ratios(self) -> list[float]:
        """In rising order."""
        return sorted({c.ratio for c in self.cells})

    @property
    def chunk_counts(self) -> list[int]:
        """In rising order."""
        return sorted({c.chunks for c in self.cells})

    def cell(self, ratio: float, chunks: int) -> OverlapCell:
        """The cell of a ratio and a number of chunks."""
        return next(c for c in self.cells if (c.ratio, c.chunks) == (ratio, chunks))

    def holds(self, cell: OverlapCell) -> bool:
        """Both figures of the claim are reached."""
        return cell.hidden >= self.target_hidden and cell.utilisation >= self.target_utilisation
