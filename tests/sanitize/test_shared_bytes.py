"""Shared bytes of strided regions against sets of bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from npusim.program.region import Region
from npusim.sanitize.overlap import intersection, merged, runs, shared_bytes

REGIONS = st.builds(
    lambda offset, axes, dtype: Region(
        "UB", -1, offset, tuple(n for n, _ in axes), tuple(s for _, s in axes), np.dtype(dtype)
    ),
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), min_size=0, max_size=3),
    st.sampled_from(["i1", "f2", "f4"]),
)


def bytes_of(r: Region) -> set[int]:
    """Every byte, one by one."""
    found = set()
    for index in np.ndindex(*r.shape):
        at = r.offset + sum(i * s for i, s in zip(index, r.strides, strict=True))
        found |= set(range(at, at + r.dtype.itemsize))
    return found


@given(REGIONS)
def test_runs_are_the_bytes(r: Region) -> None:
    starts, ends = runs(r)
    assert (starts[1:] > ends[:-1]).all()
    assert {b for s, e in zip(starts, ends, strict=True) for b in range(s, e)} == bytes_of(r)


@given(REGIONS, REGIONS)
def test_shared_bytes_are_exact(a: Region, b: Region) -> None:
    common = bytes_of(a) & bytes_of(b)
    want = (min(common), max(common) + 1 - min(common)) if common else None
    assert shared_bytes(a, b) == want
    starts, ends = intersection(runs(a), runs(b))
    assert {x for s, e in zip(starts, ends, strict=True) for x in range(s, e)} == common


def test_interleaved_columns_do_not_touch() -> None:
    whole = Region.dense("UB", -1, 0, (8, 64), np.dtype(np.float16))
    left, right = whole[:, :32], whole[:, 32:]
    assert left.end() > right.offset  # their extents do overlap
    assert shared_bytes(left, right) is None
    assert shared_bytes(whole[:, :33], right) == (64, 7 * 128 + 2)


def test_merged_joins_what_touches() -> None:
    starts, ends = merged(np.array([8, 0, 4, 20]), np.array([12, 4, 9, 21]))
    assert (starts.tolist(), ends.tolist()) == ([0, 20], [12, 21])
