"""What the kernel language hands out: pieces of buffers, queues between pipes, loops."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.errors import KernelError
from npusim.program.isa import Instr, Pipe
from npusim.program.region import Region

if TYPE_CHECKING:
    from npusim.kernels.lang import Kernel


class Alloc:
    """A piece of an on-chip buffer."""

    __slots__ = ("nbytes", "offset", "space")

    def __init__(self, space: str, offset: int, nbytes: int) -> None:
        self.space = space
        self.offset = offset
        self.nbytes = nbytes

    def region(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Region:
        """A dense region of `shape` at byte `offset` of the allocation.

        Raises:
            KernelError: it does not fit.
        """
        r = Region.dense(self.space, -1, self.offset + offset, shape, np.dtype(dtype))
        if offset + r.nbytes > self.nbytes:
            raise KernelError(
                f"region of {offset + r.nbytes} B in a {self.space} allocation of {self.nbytes} B",
                "at most the allocation",
                "allocate more, or tile smaller",
            )
        return r


class Queue:
    """`slots` equal pieces of a buffer, filled by pipe `src` and emptied by pipe `dst`.

    alloc → (src fills) → enque → deque → (dst reads) → free. Two slots are double buffering.
    """

    def __init__(
        self,
        core: Kernel,
        space: str,
        nbytes: int,
        slots: int,
        src: Pipe,
        dst: Pipe,
        partner: tuple[str, int] | None = None,
    ) -> None:
        self._core = core
        self.slots = [core.alloc(space, nbytes) for _ in range(slots)]
        #: A second buffer that is filled and freed together with the first (L0A with L0B).
        self.partners = [core.alloc(*partner) for _ in range(slots)] if partner else []
        self.src, self.dst = src, dst
        self._ids = [core.flag_id() for _ in range(slots)]
        self._filled = 0
        self._enqued = 0
        self._dequed = 0
        self._freed = 0

    def alloc(self) -> Generator[Instr, None, Alloc]:
        """`tile = yield from q.alloc()`: the next slot, once dst has freed it."""
        slot = self._filled % len(self.slots)
        if self._filled >= len(self.slots):
            yield self._core.wait_flag(self.dst, self.src, self._ids[slot])
        self._filled += 1
        return self.slots[slot]

    def enque(self) -> Instr:
        """src says that the oldest allocated slot is full."""
        slot = self._enqued % len(self.slots)
        self._enqued += 1
        return self._core.set_flag(self.src, self.dst, self._ids[slot])

    def deque(self) -> Instr:
        """dst waits for the oldest full slot (see `front`)."""
        slot = self._dequed % len(self.slots)
        self._dequed += 1
        return self._core.wait_flag(self.src, self.dst, self._ids[slot])

    @property
    def warm(self) -> int:
        """Slots that have been used: the first round of `alloc` needs no wait."""
        return min(self._filled, len(self.slots))

    @property
    def back_partner(self) -> Alloc:
        """The partner of the slot that `alloc` gave last."""
        return self.partners[(self._filled - 1) % len(self.slots)]

    @property
    def front(self) -> Alloc:
        """The slot that `deque` handed over last."""
        return self.slots[(self._dequed - 1) % len(self.slots)]

    @property
    def front_partner(self) -> Alloc:
        """The partner of the slot that `deque` handed over last."""
        return self.partners[(self._dequed - 1) % len(self.slots)]

    def free(self) -> Instr:
        """dst has read the slot."""
        slot = self._freed % len(self.slots)
        self._freed += 1
        return self._core.set_flag(self.dst, self.src, self._ids[slot])


#: Loops of fewer iterations are plain ranges: too short to repeat and still leave a last one.
SHORT_LOOP = 5


class Loop:
    """A counted loop whose middle iterations cost the same; the machine may advance `index`."""

    __slots__ = ("begin", "count", "fresh", "index", "seen", "site", "start", "waiting")

    def __init__(self, count: int, site: int) -> None:
        self.count = count
        self.index = 0
        self.site = site
        self.fresh = True  #: just advanced
        self.begin = 0  #: instructions that the core had issued when the loop began
        self.start = 0  #: … and when the current iteration began
        self.waiting = (-1, -1)  #: instructions queued at the last two iterations (see `fold`)
        self.seen: dict[object, object] = {}
