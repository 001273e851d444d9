"""L2 residency against a byte-by-byte model: least recently used out first, dirty bytes written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.machine.l2 import L2Cache

RANGES = st.tuples(st.integers(0, 60), st.integers(0, 40)).map(lambda r: (r[0], r[0] + r[1]))


class Bytes:
    """The same cache, one byte at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.dirty: dict[int, bool] = {}  # byte → dirty, oldest first

    def touch(self, start: int, end: int, write: bool) -> int:
        for byte in range(start, end):
            self.dirty[byte] = self.dirty.pop(byte, False) or write
        written_back = 0
        while len(self.dirty) > self.size:
            written_back += self.dirty.pop(next(iter(self.dirty)))
        return written_back


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 80), st.lists(st.tuples(RANGES, st.booleans()), max_size=25))
def test_as_byte_by_byte(size: int, touches: list[tuple[tuple[int, int], bool]]) -> None:
    cache, model = L2Cache(size), Bytes(size)
    for (start, end), write in touches:
        assert cache.touch(start, end, write) == model.touch(start, end, write)
        for lo in range(0, 100, 10):
            want = sum(lo <= b < lo + 10 for b in model.dirty)
            assert cache.resident(lo, lo + 10) == want


def test_a_tensor_larger_than_the_cache_leaves_its_end() -> None:
    cache = L2Cache(100)
    assert cache.touch(0, 1000, write=True) == 900
    assert cache.resident(0, 1000) == cache.resident(900, 1000) == 100
    assert cache.touch(2000, 2050, write=False) == 50
