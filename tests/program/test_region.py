"""Regions against numpy views of the same memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import KernelError
from npusim.program.region import GM, Region, contiguous_run, row_major

I32 = np.dtype(np.int32)
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


def make(shape: tuple[int, ...], offset: int = 0) -> tuple[Region, np.ndarray, np.ndarray]:
    """A region, its memory, and the numpy array it should equal."""
    n = int(np.prod(shape))
    memory = np.arange(offset // 4 + n, dtype=np.int32).view(np.uint8)
    array = memory[offset:].view(np.int32).reshape(shape)
    return Region.dense("UB", -1, offset, shape, I32), memory, array


def step(region: Region, array: np.ndarray, data: st.DataObject) -> tuple[Region, np.ndarray]:
    """One random view operation on both."""
    op = data.draw(st.sampled_from(["slice", "permute", "split", "broadcast", "expand"]))
    if op == "slice":
        key: list[object] = []
        for n in array.shape[: data.draw(st.integers(0, array.ndim))]:
            lo = data.draw(st.integers(0, n - 1))
            hi = data.draw(st.integers(lo + 1, n))
            key.append(data.draw(st.sampled_from([lo, slice(lo, hi), slice(None)])))
        return region[tuple(key)], array[tuple(key)]
    if op == "permute":
        axes = data.draw(st.permutations(range(array.ndim)))
        return region.permute(*axes), array.transpose(axes)
    if op == "split" and array.ndim:
        axis = data.draw(st.integers(0, array.ndim - 1))
        n = array.shape[axis]
        inner = data.draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
        shape = (*array.shape[:axis], n // inner, inner, *array.shape[axis + 1 :])
        return region.split(axis, inner), array.reshape(shape)
    if op == "broadcast":
        shape = tuple(n if n > 1 else data.draw(st.integers(1, 3)) for n in array.shape)
        shape = (*data.draw(st.lists(st.integers(1, 2), max_size=1)), *shape)
        return region.broadcast(shape), np.broadcast_to(array, shape)
    axis = data.draw(st.integers(0, array.ndim))
    return region.expand(axis), np.expand_dims(array, axis)


@settings(max_examples=200, deadline=None)
@given(SHAPES, st.integers(0, 3), st.integers(1, 4), st.data())
def test_views_are_numpys(
    shape: tuple[int, ...], start: int, steps: int, data: st.DataObject
) -> None:
    region, memory, array = make(shape, 4 * start)
    for _ in range(steps):
        region, array = step(region, array, data)
    assert region.shape == array.shape
    assert region.size == array.size
    assert region.nbytes == array.size * 4
    np.testing.assert_array_equal(region.view(memory), array)
    assert region.end() == 4 * (int(array.max()) + 1)


@settings(max_examples=200, deadline=None)
@given(SHAPES, st.data())
def test_the_contiguous_run_is_the_longest(shape: tuple[int, ...], data: st.DataObject) -> None:
    """By brute force: elements one after another in memory, in aligned pieces of the run."""
    region, _, array = make(shape)
    region, array = step(region, array, data)
    if not array.ndim:
        return
    run = contiguous_run(region)
    flat = array.reshape(-1)
    pieces = flat.reshape(-1, run)
    assert (np.diff(pieces, axis=1) == 1).all()
    longer = [
        int(np.prod(array.shape[a:]))
        for a in range(array.ndim)
        if int(np.prod(array.shape[a:])) > run
    ]
    for n in longer:
        assert not (np.diff(flat.reshape(-1, n), axis=1) == 1).all()


def test_the_run_of_two_regions_is_contiguous_in_both() -> None:
    whole = Region.dense(GM, 0, 0, (8, 4, 16), np.dtype(np.float16))
    columns = Region.dense(GM, 0, 0, (8, 4, 32), np.dtype(np.float16))[:, :, :16]
    rows = Region.dense(GM, 0, 0, (16, 4, 16), np.dtype(np.float16))[::1][:8]
    assert contiguous_run(whole, rows) == 8 * 4 * 16
    assert contiguous_run(whole, columns) == 16
    assert contiguous_run(whole, whole.permute(1, 0, 2).permute(1, 0, 2)) == 8 * 4 * 16


def test_an_uneven_split_is_an_error() -> None:
    with pytest.raises(KernelError, match="10 elements into blocks of 4"):
        make((10,))[0].split(0, 4)


def test_text_and_types() -> None:
    assert repr(Region.dense(GM, 2, 64, (3, 4), np.dtype(np.float16))) == "GM[2]+64:float16[3, 4]"
    assert repr(make((5,))[0]) == "UB+0:int32[5]"
    region, memory, array = make((6,))
    np.testing.assert_array_equal(
        region.as_type(np.dtype(np.float32)).view(memory), array.view(np.float32)
    )
    assert row_major((2, 3, 4), 2) == (24, 8, 2)
