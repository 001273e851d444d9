"""The kernels' constants, as the accuracy page lists them."""

from __future__ import annotations

from npusim.explore.kernel_constants import kernel_constants


def test_constants_with_their_comments() -> None:
    found = {(c.module, c.name): c for c in kernel_constants()}
    merge = found["conv_bn", "MERGE"]
    assert merge.value == "7000" and merge.timed and merge.comment.startswith("Cycles at the end")
    row = found["top_k", "ROW_LOAD"]
    assert row.comment.startswith("…") and not row.comment.startswith("#")
    assert not found["fractals", "LINES"].timed
    assert all(c.comment and c.value for c in found.values())
    assert sum(c.timed for c in found.values()) > 30
