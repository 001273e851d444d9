"""Cost functions against their closed forms."""

from __future__ import annotations

from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.chip import load_chip
from npusim.errors import UnsupportedError
from npusim.program import cost
from npusim.program.region import Region

CHIPS = {n: load_chip(n) for n in ("ascend910a", "ascend910b2", "ascend310")}
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)


def ub(*shape: int, dtype: np.dtype = F16) -> Region:
    """A dense region of UB."""
    return Region.dense("UB", -1, 0, shape, dtype)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(CHIPS)), *(st.integers(1, n) for n in (16, 300, 16)))
def test_mmad(name: str, mb: int, k: int, nb: int) -> None:
    chip = CHIPS[name]
    odd = ceil(k / 16) if name == "ascend310" and mb % 2 and nb % 2 else 0
    want = mb * ceil(k / 16) * nb + chip.core.cube.head + odd
    assert cost.mmad_cycles(chip, mb, k, nb, "float16") == want


def test_the_cube_is_slower_or_faster_in_other_types() -> None:
    b2 = CHIPS["ascend910b2"]
    head = b2.core.cube.head
    assert cost.mmad_cycles(b2, 4, 64, 4, "float32") == 4 * 4 * 16 + head  # k = 4
    assert cost.mmad_cycles(b2, 4, 64, 4, "int8") == 4 * 4 * 2 + head  # k = 32
    with pytest.raises(UnsupportedError, match="float32 inputs on the cube of ascend910a"):
        cost.mmad_cycles(CHIPS["ascend910a"], 1, 16, 1, "float32")


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**6), st.sampled_from([F16, F32]))
def test_dense_repeats(n: int, dtype: np.dtype) -> None:
    """256 B a repeat, 255 repeats an instruction."""
    chip, per_repeat = CHIPS["ascend910a"], 256 // dtype.itemsize
    repeats = ceil(n / per_repeat)
    got = cost.vector_repeats(chip, 8 * dtype.itemsize, ub(n, dtype=dtype))
    assert got == (repeats, ceil(repeats / 255))


def test_strided_repeats() -> None:
    chip = CHIPS["ascend910a"]

    def count(*regions: Region) -> tuple[int, int]:
        return cost.vector_repeats(chip, 16, *regions)

    rows = ub(100, 200)[:, :150]  # 2 repeats a row, one instruction per column of repeats
    assert count(rows) == (200, 2)
    assert count(ub(1000, 200)[:, :150]) == (2000, 8)
    assert count(ub(3, 128 * 300 + 16)[:, : 128 * 300]) == (900, 6)
    assert count(ub(100, 128)) == (100, 1)  # dense after all
    assert count(ub(1, 128).broadcast((50, 128))) == (50, 1)  # a row held for every repeat
    assert count(ub(50, 128), ub(50, 1).broadcast((50, 128))) == (50, 1)
    assert count(ub(0, 5)) == (0, 0)
    assert count(ub(64, 64).permute(1, 0)) == (4096, 64 * ceil(64 / 255))


@pytest.mark.parametrize("name", list(CHIPS))
def test_vector_cycles(name: str) -> None:
    chip = CHIPS[name]
    vec = chip.core.vector
    for bits in (8, 16, 32):
        costs = vec.costs["binary"]
        per = costs.b16 if bits <= 16 else costs.b32
        assert per is not None
        got = cost.vector_cycles(chip, "binary", bits, 1000, 4)
        assert got == ceil(1000 * per) + 4 * vec.head
    with pytest.raises(UnsupportedError, match="'sine'"):
        cost.vector_cycles(chip, "sine", 16, 1, 1)


def test_dma_cap() -> None:
    """The port's rate, less what short bursts and their fixed cost take."""
    assert cost.dma_cap(4096, 1, 64.0, 2.0, 32) == 64.0
    assert cost.dma_cap(4096, 64, 64.0, 2.0, 32) == 4096 / 128  # 64 B bursts, 2 cycles each
    assert cost.dma_cap(64 * 2, 64, 64.0, 0.1, 32) == 64 * 2 / (64 * 32 / 64)  # 2 B move 32 B
    assert cost.dma_cap(0, 0, 64.0, 2.0, 32) == 64.0


@pytest.mark.parametrize(("dtype", "columns", "step", "want"), [
    (F16, 56, 2, (7, 1)), (F16, 57, 2, (8, 1)),  # one block of 32 B each, eight a repeat
    (F32, 56, 2, (14, 2)),  # two blocks: an instruction for each
    (F16, 56, 32, (56, 1)),  # too far apart for the stride between repeats
])  # fmt: skip
def test_blocks_at_one_distance(
    dtype: np.dtype, columns: int, step: int, want: tuple[int, int]
) -> None:
    """Every `step`-th column of an image of 16 channels, as a pool with a stride reads it."""
    image = ub(columns, step, 16, dtype=dtype)[:, 0]
    chip = CHIPS["ascend910b2"]
    result = cost.vector_repeats(chip, 8 * dtype.itemsize, ub(columns, 16, dtype=dtype), image)
    assert result == want


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 10**6), st.integers(1, 5000), st.floats(1, 300), st.floats(0, 30),
    st.integers(1, 512),
)  # fmt: skip
def test_dma_cap_is_at_most_the_port_and_falls_with_bursts(
    nbytes: int, pieces: int, rate: float, burst: float, least: int
) -> None:
    one, many = (cost.dma_cap(nbytes, n, rate, burst, least) for n in (pieces, 2 * pieces))
    assert 0 < many <= one <= rate
    assert nbytes / one >= pieces * burst * (1 - 1e-9)


def test_bursts_of_a_transfer() -> None:
    dense = ub(8, 4, 16)
    assert cost.bursts(dense, dense) == 1
    assert cost.bursts(dense, ub(8, 4, 32)[:, :, :16]) == 32
    assert cost.bursts(ub(8, 64)[:, :16], ub(8, 16)) == 8


def test_loads_into_l0() -> None:
    chip = CHIPS["ascend910a"]
    mte1 = chip.core.mte1
    assert cost.fractal_load_cycles(4096, 256.0, 7) == 7 + 16
    assert cost.fractal_load_cycles(4097, 256.0, 7) == 7 + 17
    for stride, size, factor in ((1, 2, 1), (2, 2, 2), (1, 4, 2), (3, 4, 6), (1, 1, 1)):
        want = mte1.load3d_head + ceil(12 * mte1.load3d_cycles * factor)
        assert cost.load3d_cycles(chip, 12, stride, size) == want


@pytest.mark.parametrize("side", [8, 16, 32, 64])
def test_cube_of_another_shape(side: int) -> None:
    names = ("m", "n", "k.float16")
    chip = load_chip("ascend910a", [f"core.cube.{name}={side}" for name in names])
    head = chip.core.cube.head
    sides = -(-5 * 16 // side), -(-80 // side), -(-3 * 16 // side)
    assert cost.mmad_cycles(chip, 5, 80, 3, "float16") == prod(sides) + head
    assert cost.mmad_cycles(chip, 1, 16, 1, "float16") == max(1, 16 // side) ** 3 + head
