"""The windows of convolutions and pools, which profiles do not keep: read off the sizes."""

from __future__ import annotations

Attrs = tuple[tuple[str, object], ...]


def window_attrs(size: tuple[int, ...], out: tuple[int, ...], kernel: tuple[int, ...]) -> Attrs:
    """Strides and pads that take `size` to `out`: the smallest stride, pads spread evenly.

    Raises:
        ValueError: no stride up to 4 does.
    """
    strides, begin, end = [], [], []
    for n, o, k in zip(size, out, kernel, strict=True):
        for stride in range(1, 5):
            total = (o - 1) * stride + k - n
            if -stride < total <= 2 * (k - 1):
                strides.append(stride)
                begin.append(max(0, total) // 2)
                end.append(max(0, total) - max(0, total) // 2)
                break
        else:
            raise ValueError(f"no window of {k} takes {n} to {o}")
    return (("pads", (*begin, *end)), ("strides", tuple(strides)))
