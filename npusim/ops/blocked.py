"""Convolution on the device layouts themselves: NC1HWC0 activations, FRACTAL_Z weights.

The same arithmetic as `conv.Conv`, without turning tensors into NCHW and back; channel blocks of
16 move as whole 64-byte (fp32) pieces. `gemm_weights` is the only layout change, done once per
weight by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.ir import EpilogueStep
from npusim.ops.registry import get_operator, widen
from npusim.ops.window import Window


def gemm_weights(fractal_z: np.ndarray) -> np.ndarray:
    """FRACTAL_Z (K1, Co1, 16 co, C0 ci) as a matrix (K1·C0, Co1·16), fp32."""
    k1, co1, co0, c0 = fractal_z.shape
    wide = widen(fractal_z)
    assert wide is not None
    return np.ascontiguousarray(wide.transpose(0, 3, 1, 2)).reshape(k1 * c0, co1 * co0)


def conv_blocked(
    x: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray | None,
    window: Window,
    steps: Sequence[tuple[EpilogueStep, np.ndarray | None]],
) -> np.ndarray:
    """Convolution with a fused epilogue, fp32 inside.

    Args:
        x: (N, C1, H, W, C0); weights: from `gemm_weights`; bias: (Co,).
        steps: epilogue steps with their operand in NC1HWC0.

    Returns:
        (N, Co1, Ho, Wo, 16) fp32 (a strided view).
    """
    data = widen(x)
    assert data is not None
    n = len(data)
    ho, wo = window.out
    k, co = weights.shape
    columns = _columns(data, window).reshape(n * ho * wo, k)
    y = columns @ weights
    if bias is not None:
        wide = widen(bias)
        assert wide is not None
        y[:, : len(wide)] += wide
    # Unary steps in front of the first operand run on the dense matrix.
    rest = list(steps)
    while rest and rest[0][1] is None:
        y = _apply(y, rest.pop(0))
    out = y.reshape(n, ho, wo, co // 16, 16).transpose(0, 3, 1, 2, 4)
    for step in rest:
        out = _apply(out, step)
    return out


def _apply(y: np.ndarray, step: tuple[EpilogueStep, np.ndarray | None]) -> np.ndarray:
    what, operand = step
    if what.op_type == "Relu":
        return np.maximum(y, 0, out=y)
    if what.op_type in ("Add", "Sum") and operand is not None:
        wide = widen(operand)
        assert wide is not None
        return np.add(wide, y)
    op = get_operator(what.op_type)
    args = [y] if operand is None else [y, widen(operand)]
    return op.compute(args, {**op.attrs, **dict(what.attrs)}, ())[0]


def _columns(x: np.ndarray, window: Window) -> np.ndarray:
    """img2col: (N, Ho, Wo, C1, kh·kw, C0), K in (C1, kh, kw, C0) order as FRACTAL_Z has it."""
    n, c1, _, _, c0 = x.shape
    ho, wo = window.out
    kh, kw = window.kernel
    if window.taps == 1 and not any(window.begin):
        sh, sw = window.strides
        view = x[:, :, : (ho - 1) * sh + 1 : sh, : (wo - 1) * sw + 1 : sw]
        return np.ascontiguousarray(view.transpose(0, 2, 3, 1, 4))
    padded = _pad(x, window)
    out = np.empty((n, ho, wo, c1, kh * kw, c0), x.dtype)
    for i, (r, s) in enumerate(window.positions()):
        rows, cols = window.along(0, r), window.along(1, s)
        out[:, :, :, :, i] = padded[:, :, rows, cols].transpose(0, 2, 3, 1, 4)
    return out


def _pad(x: np.ndarray, window: Window) -> np.ndarray:
    """`x` (N, C1, H, W, C0) zero-padded as far as the taps reach."""
    n, c1, h, w, c0 = x.shape
    need = [
        (window.out[i] - 1) * window.strides[i] + (window.kernel[i] - 1) * window.dilations[i] + 1
        for i in range(2)
    ]
    height = max(need[0], window.begin[0] + h)
    width = max(need[1], window.begin[1] + w)
    if (height, width) == (h, w):
        return x
    out = np.zeros((n, c1, height, width, c0), x.dtype)
    top, left = window.begin[0], window.begin[1]
    out[:, :, top : top + h, left : left + w] = x
    return out
