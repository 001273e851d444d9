"""Kernels: importing this package registers them all."""

from npusim.kernels import (
    conv,
    conv_vector,
    depthwise,
    elementwise,
    gather,
    lrn,
    matmul,
    matmul_vector,
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
    "conv_vector",
    "depthwise",
    "elementwise",
    "gather",
    "lrn",
    "matmul",
    "matmul_vector",
    "move",
    "norm",
    "pool",
    "reduce",
    "softmax",
    "transdata",
    "transpose",
]
