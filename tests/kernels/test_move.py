"""Copies (Concat, Split, Slice, Pad, Expand, Tile, reshapes) bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CHIPS, check_operator, random_array

import npusim.kernels.move  # noqa: F401
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec, get_kernel

CHIP_NAMES = st.sampled_from(["toy", "ascend910a", "ascend910b2"])
DTYPES = st.sampled_from(["float16", "float32", "int64", "bool", "bfloat16"])
SHAPES = st.lists(st.integers(1, 20), min_size=1, max_size=4)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@settings(max_examples=25, deadline=None)
@given(CHIP_NAMES, SHAPES, DTYPES, st.data())
def test_concat_and_split(chip: str, shape: list[int], dtype: str, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    rng = np.random.default_rng(0)
    parts = []
    for n in sizes:
        part = list(shape)
        part[axis] = n
        parts.append(random_array(rng, part, dtype))
    check_operator(CHIPS[chip], "Move", "Concat", parts, {"axis": axis})
    whole = np.concatenate(parts, axis)
    check_operator(
        CHIPS[chip],
        "Move",
        "Split",
        [whole],
        {"axis": axis},
        [ints(*sizes)],
        n_outputs=len(sizes),
    )


@settings(max_examples=40, deadline=None)
@given(CHIP_NAMES, SHAPES, DTYPES, st.data())
def test_slice(chip: str, shape: list[int], dtype: str, data: st.DataObject) -> None:
    starts, ends, steps = [], [], []
    for n in shape:
        at = data.draw(st.integers(0, n - 1))
        step = data.draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        starts.append(at)
        ends.append(data.draw(st.integers(at + 1, n)) if step > 0 else -n - 1)
        steps.append(step)
    x = random_array(np.random.default_rng(0), shape, dtype)
    axes = tuple(range(len(shape)))
    launch = {"starts": tuple(starts), "ends": tuple(ends), "axes": axes, "steps": tuple(steps)}
    constants = [ints(*starts), ints(*ends), ints(*axes), ints(*steps)]
    check_operator(CHIPS[chip], "Move", "Slice", [x], {}, constants, launch)


@settings(max_examples=30, deadline=None)
@given(CHIP_NAMES, SHAPES, DTYPES, st.data())
def test_pad(chip: str, shape: list[int], dtype: str, data: st.DataObject) -> None:
    before = [data.draw(st.integers(-(n // 3), 9)) for n in shape]
    after = [data.draw(st.integers(-(n // 3), 9)) for n in shape]
    x = random_array(np.random.default_rng(0), shape, dtype)
    value = random_array(np.random.default_rng(1), (), dtype)
    launch = {"pads": (*before, *after), "value": value.item() if dtype != "bfloat16" else 0.5}
    if dtype == "bfloat16":
        value = np.asarray(0.5).astype(x.dtype)
    check_operator(
        CHIPS[chip],
        "Move",
        "Pad",
        [x],
        {"mode": "constant"},
        [ints(*before, *after), value],
        launch,
    )


@settings(max_examples=30, deadline=None)
@given(CHIP_NAMES, SHAPES, DTYPES, st.data())
def test_expand_and_tile(chip: str, shape: list[int], dtype: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(0)
    once = [1 if data.draw(st.booleans()) else n for n in shape]
    x = random_array(rng, once, dtype)
    check_operator(CHIPS[chip], "Move", "Expand", [x], {}, [ints(*shape)])
    repeats = [data.draw(st.integers(1, 3)) for _ in shape]
    x = random_array(rng, shape, dtype)
    check_operator(CHIPS[chip], "Move", "Tile", [x], {}, [ints(*repeats)])


@pytest.mark.parametrize("n", [1, 31, 5000, 400_000])
@pytest.mark.parametrize("dtype", ["bool", "float16", "int64"])
def test_reshape(n: int, dtype: str) -> None:
    x = random_array(np.random.default_rng(0), (n,), dtype)
    plan = check_operator(CHIPS["ascend910a"], "Move", "Reshape", [x], {}, [ints(1, -1)])
    assert plan.block_dim == min(32, max(1, -(-x.nbytes // 2048)))


def test_channel_blocks_join_without_a_change_of_layout() -> None:
    rng = np.random.default_rng(0)
    parts = [random_array(rng, (2, c, 5, 6), "float16") for c in (16, 48, 32)]
    kinds = [OperandSpec(p.shape, DType.FLOAT16, Layout.NC1HWC0) for p in parts]
    check_operator(CHIPS["toy"], "Move", "Concat", parts, {"axis": 1}, layout=Layout.NC1HWC0)
    odd = OperandSpec((2, 8, 5, 6), DType.FLOAT16, Layout.NC1HWC0)
    out = OperandSpec((2, 24, 5, 6), DType.FLOAT16, Layout.NC1HWC0)
    args = KernelArgs("Concat", (kinds[0], odd), (out,), (("axis", 1),))
    assert "multiple of 16" in get_kernel("Move").refuse(args, CHIPS["toy"])


def test_slice_with_unknown_bounds_is_refused() -> None:
    x = OperandSpec((4, 4), DType.FLOAT16)
    assert "starts" in get_kernel("Move").refuse(KernelArgs("Slice", (x,), (x,)), CHIPS["toy"])


@settings(max_examples=25, deadline=None)
@given(CHIP_NAMES, DTYPES, st.booleans(), st.data())
def test_resize_that_repeats(chip: str, dtype: str, blocked: bool, data: st.DataObject) -> None:
    shape = [data.draw(st.integers(1, n)) for n in (2, 40, 7, 7)]
    counts = [data.draw(st.integers(1, 3)) for _ in range(4)]
    if blocked:
        counts[:2] = [1, 1]
        dtype = "float16"
    layout = Layout.NC1HWC0 if blocked else Layout.ND
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    attrs["nearest_mode"] = "floor"
    scales = np.array(counts, np.float32)
    x = random_array(np.random.default_rng(0), shape, dtype)
    launch = {**attrs, "roi": (), "scales": tuple(float(s) for s in scales)}
    check_operator(
        CHIPS[chip],
        "Move",
        "Resize",
        [x],
        attrs,
        [np.zeros(0, np.float32), scales],
        launch,
        layout=layout,
    )


@pytest.mark.parametrize(
    ("attrs", "sizes", "layout", "reason"),
    [
        ({"mode": "linear"}, (1, 16, 8, 8), Layout.ND, "more than repeat"),
        ({"mode": "nearest"}, (1, 16, 6, 8), Layout.ND, "more than repeat"),
        ({"nearest_mode": "ceil"}, (1, 16, 8, 8), Layout.ND, "more than repeat"),
        ({}, (1, 32, 8, 8), Layout.NC1HWC0, "blocked channels"),
        ({}, (1, 16, 8, 8), Layout.NC1HWC0, ""),
    ],
)
def test_which_resizes_are_copies(
    attrs: dict[str, str], sizes: tuple[int, ...], layout: Layout, reason: str
) -> None:
    x, y = (OperandSpec(s, DType.FLOAT16, layout) for s in ((1, 16, 4, 4), sizes))
    given_attrs = tuple(sorted({**attrs, "sizes": sizes}.items()))
    args = KernelArgs("Resize", (x, None, None, None), (y,), given_attrs)
    found = get_kernel("Move").refuse(args, CHIPS["ascend910a"])
    assert reason in found and bool(reason) == bool(found)


@settings(max_examples=20, deadline=None)
@given(CHIP_NAMES, SHAPES, DTYPES, st.data())
def test_pad_by_the_edges(chip: str, shape: list[int], dtype: str, data: st.DataObject) -> None:
    pads = [data.draw(st.integers(0, 5)) for _ in range(2 * len(shape))]
    x = random_array(np.random.default_rng(0), shape, dtype)
    attrs = {"mode": "edge"}
    check_operator(CHIPS[chip], "Move", "Pad", [x], attrs, [ints(*pads)], {"pads": tuple(pads)})
