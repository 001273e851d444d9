"""Kernels: importing this package registers them all."""

from npusim.kernels import (
    conv,
    depthwise,
    elementwise,
    gather,
    lrn,
    matmul,
    move,
    norm,
    pool,
    reduce,
    softmax,
    transdata,
    transpose,
)

__all__ = [
    "conv",
    "depthwise",
    "elementwise",
    "gather",
    "lrn",
    "matmul",
    "move",
    "norm",
    "pool",
    "reduce",
    "softmax",
    "transdata",
    "transpose",
]
