"""How batch normalisation in training is cut over blocks and tiles, as CANN's schedules cut it.

Sources: TBE's bn_update_schedule, bn_update_grad_schedule and bn_grad_reduce_schedule. The first
axis that has at least one index for every core is cut into ⌈extent / cores⌉ indices a block (so
32 images on 30 cores keep 16 of them busy, with two images each); a tile is a whole slice, several
slices of neighbouring channel blocks, or some rows of a slice.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.program.kernel import KernelArgs, Tiling

C0 = 16


@dataclass(frozen=True)
class Box:
    """A block's part: images [n0, n1), channel blocks [c0, c1), rows [h0, h1)."""

    n0: int
    n1: int
    c0: int
    c1: int
    h0: int
    h1: int

    @property
    def images(self) -> int:
        """Images."""
        return self.n1 - self.n0

    @property
    def channels(self) -> int:
        """Channel blocks."""
        return self.c1 - self.c0


@dataclass(frozen=True)
class Tile:
    """Rows [h0, h1) of `count` neighbouring channel blocks from c of image n."""

    n: int
    c: int
    count: int
    h0: int
    h1: int


@dataclass(frozen=True)
class Job:
    """A launch: images × channel blocks × rows × columns, and how it is cut.

    Attributes:
        per_n, per_c, per_h: images, channel blocks and rows of a block.
        rows: of a tile; group: slices of a tile (1 where a slice is cut).
    """

    images: int
    c1: int
    height: int
    width: int
    per_n: int
    per_c: int
    per_h: int
    rows: int
    group: int

    @staticmethod
    def of(args: KernelArgs, tiling: Tiling) -> Job:
        """The launch under a tiling."""
        n, c1, h, w, _ = args.operands[0].storage_shape
        names = ("per_n", "per_c", "per_h", "rows", "group")
        return Job(n, c1, h, w, *(tiling[x] for x in names))

    @property
    def positions(self) -> int:
        """H·W."""
        return self.height * self.width

    def room(self) -> int:
        """Elements of the largest tile."""
        return self.group * self.rows * self.width * C0

    def boxes(self) -> list[Box]:
        """The parts of the blocks that have work, images outermost."""
        return [
            Box(n, min(self.images, n + self.per_n), c, min(self.c1, c + self.per_c), h,
                min(self.height, h + self.per_h))
            for n in range(0, self.images, self.per_n)
            for c in range(0, self.c1, self.per_c)
            for h in range(0, self.height, self.per_h)
        ]  # fmt: skip

    def groups(self, box: Box) -> list[tuple[int, int]]:
        """(first channel block, count) of the tiles across a block's channel blocks."""
        return [(c, min(self.group, box.c1 - c)) for c in range(box.c0, box.c1, self.group)]

    def cuts(self, box: Box) -> list[tuple[int, int]]:
        """Row ranges of the tiles down a slice."""
        return [(h, min(box.h1, h + self.rows)) for h in range(box.h0, box.h1, self.rows)]

    def even(self, box: Box) -> bool:
        """True when all of a block's slices cost the same: no ragged group."""
        return box.channels % self.group == 0


def nearest_factor(extent: int, most: int) -> int:
    """The largest factor of `extent` up to `most` if it is above half of it, else `most` itself."""
    factor = most
    while extent % factor:
        factor -= 1
    return factor if 2 * factor > most else most


def cut_blocks(images: int, c1: int, height: int, cores: int, sums: bool) -> tuple[int, int, int]:
    """(images, channel blocks, rows) of a block.

    Sums per channel prefer whole channel blocks, everything else whole images.
    """
    by_channels = (images, -(-c1 // cores), height) if c1 >= cores else None
    by_images = (-(-images // cores), c1, height) if images >= cores else None
    first, second = (by_channels, by_images) if sums else (by_images, by_channels)
    found = first or second
    if found:
        return found
    if images * c1 >= cores:
        per = max(1, images * c1 // cores)
        while images * -(-c1 // per) > cores:
            per += 1
        return 1, per, height
    parts = min(height, max(1, cores // (images * c1)))
    return 1, 1, -(-height // parts)


def cut_tile(rows: int, width: int, channels: int, limit: int, grouped: bool) -> tuple[int, int]:
    """(rows, slices) of a tile of at most `limit` elements; (0, 0) when a row does not fit."""
    row = width * C0
    if rows * row <= limit:
        most = max(1, min(channels, limit // (rows * row)))
        return rows, nearest_factor(channels, most) if grouped else 1
    if row > limit:
        return 0, 0
    return nearest_factor(rows, limit // row), 1
