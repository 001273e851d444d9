"""fp16 conversions give numpy's bits, for every fp16 value and fp32 around them; they saturate."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.ops.half import to_fp16, to_fp32

ALL = np.arange(65536, dtype=np.uint16).view(np.float16)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    bits = np.uint16 if a.dtype == np.float16 else np.uint32
    nan = np.isnan(a) & np.isnan(b)
    return bool(((a.view(bits) == b.view(bits)) | nan).all()) and a.dtype == b.dtype


def test_to_fp32() -> None:
    assert same(to_fp32(ALL), ALL.astype(np.float32))


def test_to_fp16() -> None:
    rng = np.random.default_rng(0)
    exact = ALL.astype(np.float32)
    with np.errstate(all="ignore"):
        halfway = ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)
        around = [np.nextafter(halfway, np.float32(s)) for s in (-np.inf, np.inf)]
        anything = rng.integers(0, 2**32, 500_000, np.uint32).view(np.float32)
        limits = np.array([65504, 65519.99, 65520, 65536, 1e30, np.inf], np.float32)
        x = np.concatenate([exact, halfway, *around, anything, limits, -limits])
        want = np.where(np.isfinite(x), np.clip(x, -65504, 65504), x).astype(np.float16)
    assert same(to_fp16(x), want)
    assert same(to_fp16(limits), want[-12:-6])
    square = x[:65536].reshape(256, 256).T
    assert same(np.ascontiguousarray(to_fp16(square).T).reshape(-1), want[:65536])


@pytest.mark.parametrize("axes", [(0, 1, 2, 3, 4), (0, 2, 3, 1, 4), (4, 3, 2, 1, 0)])
def test_memory_order_is_kept(axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 20, 20, 16)).astype(np.float32)
    x = x.transpose(axes)
    half = to_fp16(x)
    np.testing.assert_array_equal(half, x.astype(np.float16))
    back = to_fp32(half)
    np.testing.assert_array_equal(back, half.astype(np.float32))
    assert half.transpose(np.argsort(axes)).flags.c_contiguous
    assert back.transpose(np.argsort(axes)).flags.c_contiguous
    np.testing.assert_array_equal(to_fp16(x[..., ::2]), half[..., ::2])
