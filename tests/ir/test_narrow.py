"""fp8, fp4, int4 and int2: conversions as ONNX defines them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim.frontends.onnx_tensor import ELEMENT_TYPES, constant
from npusim.ir import DType, convert
from npusim.ir.narrow import INTEGERS, is_narrow, narrowed, widened

NUMBERS = {d: n for n, d in ELEMENT_TYPES.items() if d.is_narrow}
FLOATS = [d for d in NUMBERS if d.value not in INTEGERS]
X = np.concatenate(
    [
        np.random.default_rng(0).normal(0, 100, 400),
        2.0 ** np.arange(-140, 128),
        [0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 447, 449, 464, 465],
    ]
).astype(np.float32)


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_round_and_saturate(dtype: DType) -> None:
    if dtype is DType.FLOAT8E8M0:
        for mode in ("up", "down", "nearest"):
            for saturate in (True, False):
                want = numpy_helper.to_float8e8m0(X, saturate, mode)
                same(narrowed(X, dtype.np, saturate, mode), want.astype(dtype.np))
        return
    same(narrowed(X, dtype.np), numpy_helper.saturate_cast(X, dtype.np))
    same(convert(X, dtype), numpy_helper.saturate_cast(X, dtype.np))
    same(narrowed(X, dtype.np, saturate=False), X.astype(dtype.np))


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_keep_their_low_bits(name: str) -> None:
    dtype, x = DType(name), np.arange(-40, 40)
    bits = int(name[-1])
    got = narrowed(x, dtype.np).astype(np.int64)
    np.testing.assert_array_equal(got & (1 << bits) - 1, x & (1 << bits) - 1)
    within = got == x  # floats that the type does not reach: as ml_dtypes has them
    floats = narrowed(x + 0.0, dtype.np)
    np.testing.assert_array_equal(floats[within].astype(np.int64), x[within])
    with np.errstate(invalid="ignore"):
        same(floats, (x + 0.0).astype(dtype.np))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_widening_is_exact(dtype: DType) -> None:
    values = narrowed(np.arange(-8, 8).astype(np.float32), dtype.np)
    assert is_narrow(values.dtype) and not is_narrow(np.dtype("int8"))
    assert widened(values).dtype.kind in "iuf"
    same(convert(values, DType.FLOAT32), values.astype(np.float32))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_of_files(dtype: DType, raw: bool) -> None:
    values = narrowed(np.array([[1, 2, -3], [0, -1, 5], [7, 2, 1]], np.float32), dtype.np)
    proto = numpy_helper.from_array(values, "w")
    if not raw:
        data = proto.raw_data
        proto.ClearField("raw_data")
        proto.int32_data.extend(data)
    got = constant(proto, None).value()
    assert got.shape == (3, 3)
    same(got, numpy_helper.to_array(numpy_helper.from_array(values, "w")))


def test_tensors_that_lie_beside_the_model(tmp_path: object) -> None:
    values = narrowed(np.arange(7), DType.INT4.np)
    proto = numpy_helper.from_array(values, "w")
    (tmp_path / "w.bin").write_bytes(b"??" + proto.raw_data)
    outside = TensorProto(name="w", dims=[7], data_type=NUMBERS[DType.INT4], data_location=1)
    for key, text in (("location", "w.bin"), ("offset", "2")):
        outside.external_data.add(key=key, value=text)
    same(constant(outside, tmp_path).value(), values)


def test_element_numbers_are_those_of_onnx() -> None:
    for dtype, number in NUMBERS.items():
        assert helper.tensor_dtype_to_np_dtype(number) == dtype.np
