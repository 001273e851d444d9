"""Gradients of activations and losses, elementwise, under CANN's names."""

from __future__ import annotations

import math

import numpy as np

from npusim.ops.common import elementwise
from npusim.ops.elementary import sigmoid

_ROOT = math.sqrt(2 / math.pi)


def _gelu_grad(dy: np.ndarray, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """Gradient of the tanh form; the forward result y is an operand that it does not need."""
    t = np.tanh(_ROOT * (x + 0.044715 * (x * x * x)))
    slope = _ROOT * (1 + 3 * 0.044715 * (x * x))
    return np.asarray(dy * (0.5 * (1 + t)) * (1 + x * (1 - t) * slope))


def _cross_entropy(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x, 0) - x * target + np.log1p(np.exp(-np.abs(x))))


def _cross_entropy_grad(x: np.ndarray, target: np.ndarray, dy: np.ndarray) -> np.ndarray:
    return np.asarray((sigmoid(x) - target) * dy)


def _masked(dy: np.ndarray, wins: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(wins, dy, np.zeros((), dy.dtype)))


def _swish_grad(dy: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Gradient of y = x·sigmoid(x)."""
    return np.asarray(dy * (y + sigmoid(x) * (1 - y)))


def _leaky_relu_grad(dy: np.ndarray, x: np.ndarray, alpha: float) -> np.ndarray:
    return np.asarray(np.where(x > 0, dy, dy * dy.dtype.type(alpha)))


def _fast_gelu_grad(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    s = sigmoid(x.dtype.type(1.702) * x)
    return np.asarray(dy * (s + x.dtype.type(1.702) * x * s * (1 - s)))


elementwise("FastGelu", lambda x: x * sigmoid(x.dtype.type(1.702) * x), passes=9)
elementwise("FastGeluGrad", _fast_gelu_grad, passes=14)
elementwise("GeluGrad", _gelu_grad, passes=24)
elementwise("TanhGrad", lambda y, dy: dy * (1 - y * y), passes=4)
elementwise("SigmoidGrad", lambda y, dy: dy * (y * (1 - y)), passes=3)
elementwise("SwishGrad", _swish_grad, passes=9)
elementwise("LeakyReluGrad", _leaky_relu_grad, attrs={"alpha": 0.01}, passes=6)
elementwise("ReluGrad", lambda dy, x: _masked(dy, x > 0), passes=3)
elementwise("MaximumGrad", lambda dy, x, y: _masked(dy, x >= y), passes=3)
elementwise("MinimumGrad", lambda dy, x, y: _masked(dy, x <= y), passes=3)
elementwise("SigmoidCrossEntropyWithLogits", _cross_entropy, passes=8)
elementwise("SigmoidCrossEntropyWithLogitsGrad", _cross_entropy_grad, passes=6)
