"""Parts of a result: each element is in exactly one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.ops.parts import Part, by_images, by_rows

SIZES = st.integers(1, 9)


@pytest.mark.parametrize("kind", ["rows", "images"])
@given(SIZES, SIZES, SIZES, st.integers(1, 30))
def test_parts_cover_a_result_once(kind: str, n: int, c1: int, height: int, size: int) -> None:
    parts = {
        "rows": by_rows(n, height, size),
        "images": by_images(n, size),
    }[kind]
    seen = np.zeros((n, c1, height, 2, 16), int)
    for part in parts:
        of = part.of(seen, seen.shape)
        assert of.size
        of += 1
    assert (seen == 1).all()


def test_operands_are_parted_where_they_are_not_broadcast() -> None:
    whole = (2, 4, 6, 3, 16)
    part = Part(slice(1, 2), slice(3, 6))
    assert part.of(np.zeros((1, 4, 1, 1, 16)), whole).shape == (1, 4, 1, 1, 16)
    assert part.of(np.zeros((2, 1, 6, 1, 1)), whole).shape == (1, 1, 3, 1, 1)
    assert part.of(np.array(6.0), whole).shape == ()
