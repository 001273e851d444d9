"""Buffers of a block that works tile by tile: input and output queues and temporaries, by name."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np

from npusim.kernels.lang import Alloc, Kernel, Queue
from npusim.kernels.rows import in_queue, out_queue
from npusim.program.isa import Instr
from npusim.program.region import Region

Loading = Generator[Instr, None, Region]


class Stage:
    """Allocates a buffer when it is first named; later uses must not be larger.

    `slots` of each queue: 2 overlap a tile's transfers with its neighbours' arithmetic, 1 does not.
    """

    def __init__(self, k: Kernel, slots: int = 2) -> None:
        self.k, self.slots = k, slots
        self._queues: dict[int, Queue] = {}
        self._temporaries: dict[str, Alloc] = {}

    def load(self, gm: Region, room: int) -> Loading:
        """Load a piece of a GM operand into UB; slots of `room` elements."""
        return self.load_inside(gm, room, gm.shape, lambda tile: tile)

    def load_inside(
        self,
        gm: Region,
        room: int,
        shape: tuple[int, ...],
        inside: Callable[[Region], Region],
        key: int | None = None,
    ) -> Loading:
        """Load a piece into `inside(tile)` of a UB tile of `shape`: padding stays around it.

        `key` names the queue where an operand has several (default: the operand's index).
        """
        key = gm.operand if key is None else key
        if key not in self._queues:
            self._queues[key] = in_queue(self.k, room * gm.dtype.itemsize, self.slots)
        queue = self._queues[key]
        place = yield from queue.alloc()
        tile = place.region(shape, gm.dtype)
        target = inside(tile)
        yield self.k.load(target, gm)
        yield queue.enque()
        yield queue.deque()
        return tile

    def free(self, index: int) -> Instr:
        """The vector pipe has read the tile of operand (or queue) `index`."""
        return self._queues[index].free()

    def temp(self, name: str, shape: tuple[int, ...], dtype: np.dtype, room: int = 0) -> Region:
        """A temporary of at most `room` elements (default: as many as `shape` has)."""
        if name not in self._temporaries:
            size = max(room, int(np.prod(shape))) * dtype.itemsize
            self._temporaries[name] = self.k.alloc("UB", size)
        return self._temporaries[name].region(shape, dtype)

    def out(self, index: int, shape: tuple[int, ...], dtype: np.dtype, room: int) -> Loading:
        """An output tile for the vector pipe to fill."""
        if index not in self._queues:
            self._queues[index] = out_queue(self.k, room * dtype.itemsize, self.slots)
        place = yield from self._queues[index].alloc()
        return place.region(shape, dtype)

    def store(
        self, gm: Region, tile: Region, atomic: bool = False, key: int | None = None
    ) -> Iterator[Instr]:
        """Hand a filled tile (of queue `key`, default: the operand's) over and store it."""
        queue = self._queues[gm.operand if key is None else key]
        yield queue.enque()
        yield queue.deque()
        yield self.k.store(gm, tile, atomic)
        yield queue.free()
