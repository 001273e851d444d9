"""Layouts: packing is reversible, pads with zeros, and puts elements where CANN's formats do."""

from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import GraphError, UnsupportedError
from npusim.ir import DType, Layout, convert, pack, storage_bytes, storage_shape, unpack
from npusim.ir.layout import lies_as_nd

DTYPES = [np.float16, np.float32, np.int8, np.int32, ml_dtypes.bfloat16]
IMAGES = st.tuples(*(st.integers(1, n) for n in (3, 40, 7, 7)))
FEW = st.tuples(*(st.integers(1, n) for n in (40, 4, 7, 7)))
MATRICES = st.lists(st.integers(1, 40), min_size=2, max_size=4).map(tuple)
ANY = st.one_of(
    st.tuples(
        st.sampled_from([Layout.NC1HWC0, Layout.FRACTAL_Z, Layout.NC1HWC0_8, Layout.FRACTAL_Z_8]),
        IMAGES,
    ),
    st.tuples(st.sampled_from([Layout.NC1HWC0_C04, Layout.FRACTAL_Z_C04]), FEW),
    st.tuples(st.just(Layout.FRACTAL_NZ), MATRICES),
    st.tuples(st.just(Layout.ND), MATRICES),
)


def numbered(shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """Values 1, 2, 3, … (small enough to be exact), never zero."""
    return (np.arange(prod(shape)) % 100 + 1).reshape(shape).astype(dtype)


@settings(max_examples=200, deadline=None)
@given(ANY, st.sampled_from(DTYPES))
def test_round_trip(case: tuple[Layout, tuple[int, ...]], dtype: object) -> None:
    layout, shape = case
    x = numbered(shape, dtype)
    kind = DType.of(x.dtype)
    stored = pack(x, layout)
    assert stored.shape == storage_shape(shape, layout, kind)
    assert stored.nbytes == storage_bytes(shape, layout, kind) >= x.nbytes
    assert stored.flags.c_contiguous
    np.testing.assert_array_equal(unpack(stored, shape, layout), x)
    assert np.count_nonzero(stored) == x.size  # the padding is zero
    np.testing.assert_array_equal(unpack(stored.reshape(-1), shape, layout), x)


@settings(max_examples=200, deadline=None)
@given(ANY, st.sampled_from(DTYPES))
def test_what_lies_as_in_nd(case: tuple[Layout, tuple[int, ...]], dtype: object) -> None:
    """Whatever the rule says lies as in ND does, byte for byte."""
    layout, shape = case
    if lies_as_nd(shape, layout, DType.of(np.dtype(dtype))):
        x = (np.arange(prod(shape)) % 127).reshape(shape).astype(dtype)
        np.testing.assert_array_equal(pack(x, layout).reshape(-1), x.reshape(-1))


@pytest.mark.parametrize(
    ("shape", "layout", "dtype", "same"),
    [
        ((3, 32, 1, 1), Layout.NC1HWC0, DType.FLOAT16, True),
        ((3, 32, 1, 1), Layout.NC1HWC0, DType.INT8, True),
        ((3, 16, 1, 1), Layout.NC1HWC0, DType.INT8, False),
        ((3, 8, 1, 1), Layout.NC1HWC0_8, DType.FLOAT32, True),
        ((3, 4, 1, 1), Layout.NC1HWC0_C04, DType.FLOAT16, True),
        ((3, 3, 1, 1), Layout.NC1HWC0_C04, DType.FLOAT16, False),
        ((16, 4, 2, 2), Layout.FRACTAL_Z_C04, DType.FLOAT16, False),
        ((3, 32, 1, 2), Layout.NC1HWC0, DType.FLOAT16, False),
        ((3, 20, 1, 1), Layout.NC1HWC0, DType.FLOAT16, False),
        ((3, 16, 2, 1, 1), Layout.NDC1HWC0, DType.FLOAT16, False),
        ((3, 16, 1, 1, 1), Layout.NDC1HWC0, DType.FLOAT16, True),
        ((5, 48, 16), Layout.FRACTAL_NZ, DType.FLOAT16, True),
        ((5, 48, 32), Layout.FRACTAL_NZ, DType.FLOAT16, False),
        ((5, 40, 16), Layout.FRACTAL_NZ, DType.FLOAT16, False),
        ((16, 16, 1, 1), Layout.FRACTAL_Z, DType.FLOAT16, False),
        ((7,), Layout.ND, DType.BOOL, True),
    ],
)
def test_views(shape: tuple[int, ...], layout: Layout, dtype: DType, same: bool) -> None:
    assert lies_as_nd(shape, layout, dtype) is same


@settings(max_examples=60, deadline=None)
@given(IMAGES, st.sampled_from(DTYPES), st.data())
def test_where_elements_lie(shape: tuple[int, ...], dtype: object, data: st.DataObject) -> None:
    """Element by element, from the formats' definitions."""
    x = numbered(shape, dtype)
    c0 = 32 if x.itemsize == 1 else 16
    n, c, h, w = (data.draw(st.integers(0, d - 1)) for d in shape)
    assert pack(x, Layout.NC1HWC0)[n, c // c0, h, w, c % c0] == x[n, c, h, w]
    kh, kw = shape[2:]
    k = (c // c0 * kh + h) * kw + w
    assert pack(x, Layout.FRACTAL_Z)[k, n // 16, n % 16, c % c0] == x[n, c, h, w]
    assert pack(x, Layout.FRACTAL_NZ)[n, c, w // c0, h // 16, h % 16, w % c0] == x[n, c, h, w]
    assert pack(x, Layout.NC1HWC0_8)[n, c // 8, h, w, c % 8] == x[n, c, h, w]
    narrow = (c // 8 * kh + h) * kw + w
    assert pack(x, Layout.FRACTAL_Z_8)[narrow, n // 16, n % 16, c % 8] == x[n, c, h, w]


@settings(max_examples=40, deadline=None)
@given(FEW, st.sampled_from(DTYPES), st.data())
def test_where_elements_of_few_channels_lie(
    shape: tuple[int, ...], dtype: object, data: st.DataObject
) -> None:
    x = numbered(shape, dtype)
    c0 = 32 if x.itemsize == 1 else 16
    n, c, h, w = (data.draw(st.integers(0, d - 1)) for d in shape)
    assert pack(x, Layout.NC1HWC0_C04)[n, 0, h, w, c] == x[n, c, h, w]
    k = (h * shape[3] + w) * 4 + c
    assert pack(x, Layout.FRACTAL_Z_C04)[k // c0, n // 16, n % 16, k % c0] == x[n, c, h, w]


def test_the_weights_of_a_stem_take_a_quarter() -> None:
    """7 × 7 × 3: 13 blocks of K instead of 49."""
    stem = (64, 3, 7, 7)
    assert storage_shape(stem, Layout.FRACTAL_Z_C04, DType.FLOAT16) == (13, 4, 16, 16)
    assert storage_shape(stem, Layout.FRACTAL_Z, DType.FLOAT16) == (49, 4, 16, 16)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout.NC1HWC0, (3, 4)),
        (Layout.FRACTAL_Z, (1, 2, 3)),
        (Layout.FRACTAL_NZ, (5,)),
        (Layout.NC1HWC0_C04, (1, 5, 2, 2)),
        (Layout.FRACTAL_Z_C04, (1, 5, 2, 2)),
        (Layout.NC1HWC0_C04, (1, 3, 2)),
    ],
)
def test_a_rank_that_does_not_fit_is_an_error(layout: Layout, shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match=layout.value):
        storage_shape(shape, layout, DType.FLOAT16)


def test_element_types() -> None:
    assert DType.of(np.dtype(ml_dtypes.bfloat16)) is DType.BFLOAT16
    for dtype in DType:
        assert DType.of(dtype.np) is DType.of(dtype.value) is dtype
        assert dtype.size == np.zeros(1, dtype.np).nbytes
    assert {d for d in DType if d.is_float} == {
        DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16,
    }  # fmt: skip
    with pytest.raises(UnsupportedError, match="complex64"):
        DType.of(np.complex64)


def test_conversion_to_half_saturates_but_keeps_infinity() -> None:
    x = np.array([1e6, -1e6, np.inf, -np.inf, np.nan, 1.5], np.float32)
    y = convert(x, DType.FLOAT16)
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, [65504, -65504, np.inf, -np.inf, np.nan, 1.5])
    assert convert(x, DType.FLOAT32) is x
    assert convert(np.array([3], np.int64), DType.FLOAT16)[0] == 3
