"""Samples between the elements of an image."""

from __future__ import annotations

from itertools import product

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check, supported
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema

_CUBIC = -0.75  #: of Keys' kernel, as PyTorch and ONNX choose it
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


@operator("GridSample")
class GridSample(Operator):
    """x [N, C, spatial …] at the points of a grid [N, …, rank]: -1 … 1, the last axis first."""

    attrs = schema(align_corners=0, mode="linear", padding_mode="zeros")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, grid = x.type(0), x.type(1).shape
        rank = len(t.shape) - 2
        check(
            rank > 0 and len(grid) == rank + 2 and (grid[0], grid[-1]) == (t.shape[0], rank),
            f"a grid {grid} on {t.shape}",
            "[N, spatial …, rank] on [N, C, spatial …]",
        )
        supported(attrs["mode"] in _TAPS, f"mode={attrs['mode']!r}", ", ".join(_TAPS))
        modes = ("zeros", "border", "reflection")
        padding = attrs["padding_mode"]
        supported(padding in modes, f"padding_mode={padding!r}", ", ".join(modes))
        return [TensorType((*t.shape[:2], *grid[1:-1]), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        size = np.array(x[0].shape[2:], np.float32)
        at = x[1][..., ::-1].astype(np.float32) + 1
        if attrs["align_corners"]:
            at, low, high = at / 2 * (size - 1), 0 * size, size - 1
        else:
            at, low, high = (at * size - 1) / 2, 0 * size - 0.5, size - 0.5
        if attrs["mode"] == "nearest":
            at = np.rint(at)
        if attrs["padding_mode"] == "border":
            at = np.clip(at, 0, size - 1)
        elif attrs["padding_mode"] == "reflection":
            at = _reflected(at, low, high)
        how = (attrs["mode"], attrs["padding_mode"])
        y = [sample(a, p, *how, low, high) for a, p in zip(x[0], at, strict=True)]
        return [np.stack(y) if y else np.zeros(out[0].shape, np.float32)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        corners = _TAPS[attrs["mode"]] ** (len(x[0].shape) - 2)
        return Work(vector_ops=2 * corners * out[0].size)


def _reflected(at: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Coordinates mirrored at both borders until they lie between."""
    span = np.where(high > low, high - low, 1)
    past = np.where(at < low, low - at, np.where(at > high, at - high, 0))
    turns, rest = np.floor(past / span), np.mod(past, span)
    from_low = (at < low) == (turns % 2 == 0)
    mirrored = np.where(from_low, low + rest, high - rest)
    return np.where(past > 0, np.where(high > low, mirrored, low), at)


def sample(
    x: np.ndarray, at: np.ndarray, mode: str, padding: str, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """x [C, spatial …] at points […, rank] in elements: [C, …].

    Args:
        low, high: borders, for the padding mode "reflection".
    """
    size = np.array(x.shape[1:])
    first = np.floor(at).astype(np.int64)
    if mode == "cubic":
        first -= 1
    weights = _weights(at - np.floor(at), mode)
    y = np.zeros((x.shape[0], *at.shape[:-1]), np.float32)
    for taps in product(range(_TAPS[mode]), repeat=len(size)):
        place = first + np.array(taps)
        weight = np.prod([weights[t][..., i] for i, t in enumerate(taps)], 0, dtype=np.float32)
        if padding == "reflection":
            place = _reflected(place.astype(np.float32), low, high).astype(np.int64)
        elif padding == "zeros":
            weight = weight * ((place >= 0) & (place < size)).all(-1)
        place = np.clip(place, 0, size - 1)
        y += x[(slice(None), *np.moveaxis(place, -1, 0))] * weight
    return y


def _weights(t: np.ndarray, mode: str) -> list[np.ndarray]:
    """Weights of the taps for a point that lies `t` behind its lower neighbour."""
    if mode == "nearest":
        return [np.ones_like(t)]
    if mode == "linear":
        return [1 - t, t]
    a = _CUBIC
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (1 + t, 2 - t)]
    return [far[0], *near, far[1]]
