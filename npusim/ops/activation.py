"""Activation functions."""

from __future__ import annotations

import math

import numpy as np

from npusim.ops.common import elementwise, supported
from npusim.ops.elementary import erf, sigmoid


def _clip(
    x: np.ndarray, low: np.ndarray | None = None, high: np.ndarray | None = None
) -> np.ndarray:
    """max(low, ·) then min(high, ·): high wins when the two cross, as ONNX has it."""
    if low is not None and high is not None:
        return np.clip(x, low, high)
    y = x if low is None else np.maximum(x, low)
    return y if high is None else np.minimum(y, high)


def _gelu(x: np.ndarray, approximate: str) -> np.ndarray:
    supported(
        approximate in ("none", "tanh"), f"Gelu with approximate={approximate!r}", "none, tanh"
    )
    if approximate == "tanh":
        y = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))
    else:
        y = erf(x * x.dtype.type(math.sqrt(0.5)))
    y = y + 1
    y *= x
    y *= 0.5
    return y


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)


def _shrink(x: np.ndarray, lambd: float, bias: float) -> np.ndarray:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)).astype(x.dtype)


def _hard_sigmoid(x: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    return np.clip(alpha * x + beta, 0, 1)


elementwise("Relu", lambda x: np.maximum(x, 0))
elementwise(
    "LeakyRelu", lambda x, alpha: np.where(x < 0, alpha * x, x), attrs={"alpha": 0.01}, passes=2
)
elementwise("PRelu", lambda x, slope: np.where(x < 0, slope * x, x), passes=3)
elementwise(
    "ThresholdedRelu", lambda x, alpha: np.where(x > alpha, x, 0), attrs={"alpha": 1.0}, passes=2
)
elementwise("Elu", _elu, attrs={"alpha": 1.0}, passes=5)
elementwise("Celu", _celu, attrs={"alpha": 1.0}, passes=6)
elementwise(
    "Selu",
    lambda x, alpha, gamma: gamma * _elu(x, alpha),
    attrs={"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    passes=6,
)
elementwise("Clip", _clip, passes=2)
elementwise("Sigmoid", sigmoid, passes=4)
elementwise("Swish", lambda x, alpha: x * sigmoid(alpha * x), attrs={"alpha": 1.0}, passes=6)
elementwise("HardSigmoid", _hard_sigmoid, attrs={"alpha": 0.2, "beta": 0.5}, passes=4)
elementwise("HardSwish", lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5), passes=5)
elementwise("Tanh", np.tanh, passes=6)
elementwise("Softplus", _softplus, passes=6)
elementwise("Softsign", lambda x: x / (1 + np.abs(x)), passes=3)
elementwise("Mish", lambda x: x * np.tanh(_softplus(x)), passes=13)
elementwise("Gelu", _gelu, attrs={"approximate": "none"}, passes=12)
elementwise("Shrink", _shrink, attrs={"lambd": 0.5, "bias": 0.0}, passes=6)
