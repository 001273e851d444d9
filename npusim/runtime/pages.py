"""Physical device memory, page by page: huge pages of 2 MiB, normal pages of 4 KiB.

Normal pages are carved from huge ones. Sizes: CANN's memory guide (huge pages of 2 MiB are given
in whole ones; requests of up to 1 MiB get normal pages under HUGE_FIRST).
"""

from __future__ import annotations

from enum import IntEnum

HUGE = 2 << 20
NORMAL = 4 << 10
_SMALL = 1 << 20  #: requests up to this size get normal pages, if they may


class MemPolicy(IntEnum):
    """Which pages an allocation takes; ACL's numbers (the P2P ones are these, plus 3)."""

    HUGE_FIRST = 0
    HUGE_ONLY = 1
    NORMAL_ONLY = 2


class Pages:
    """Counts pages in use.

    Args:
        size: bytes of device memory.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._frames = size // HUGE
        self._huge = self._normal = 0

    @property
    def free(self) -> int:
        """Bytes in free pages, as normal ones."""
        return (self._frames - self._huge) * HUGE - self._normal * NORMAL

    @property
    def free_huge(self) -> int:
        """Bytes in free huge pages."""
        carved = -(-self._normal * NORMAL // HUGE)
        return max(0, self._frames - self._huge - carved) * HUGE

    def take(self, nbytes: int, policy: MemPolicy, asked: int = 0) -> int:
        """The page size that was taken for an allocation; 0 when there are not so many.

        Args:
            asked: bytes that the program asked for, which decide; by default all of them.
        """
        for page in self._choices(asked or nbytes, policy):
            if -(-nbytes // page) * page <= (self.free_huge if page == HUGE else self.free):
                self._count(nbytes, page, 1)
                return page
        return 0

    def give(self, nbytes: int, page: int) -> None:
        """The allocation's pages are free again."""
        self._count(nbytes, page, -1)

    def _choices(self, nbytes: int, policy: MemPolicy) -> tuple[int, ...]:
        if policy is MemPolicy.HUGE_ONLY:
            return (HUGE,)
        if policy is MemPolicy.NORMAL_ONLY or nbytes <= _SMALL:
            return (NORMAL,)
        return (HUGE, NORMAL)

    def _count(self, nbytes: int, page: int, sign: int) -> None:
        pages = sign * -(-nbytes // page)
        if page == HUGE:
            self._huge += pages
        else:
            self._normal += pages
