"""Optimiser steps, under CANN's names: each returns the new state of what it updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.ops.common import elementwise
from npusim.ops.registry import Arrays, Attrs, Operator, Types, Work, operator

Step = Callable[..., tuple[np.ndarray, ...]]


def _optimizer(op_type: str, step: Step, passes: int, **attrs: Any) -> None:
    """Declare an optimiser: `step(*inputs, **attrs)` gives the outputs in order."""

    class Optimizer(Operator):
        @staticmethod
        def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
            return list(step(*x, **attrs))

        @staticmethod
        def work(x: Types, out: Types, attrs: Attrs) -> Work:
            return Work(vector_ops=passes * out[0].size)

    Optimizer.__name__ = Optimizer.__qualname__ = op_type
    Optimizer.__doc__ = f"{op_type}: {passes} vector operations per element."
    Optimizer.attrs = attrs
    Optimizer.elementwise = True
    operator(op_type)(Optimizer)


def _adam(
    var: Any, m: Any, v: Any, beta1_power: Any, beta2_power: Any, lr: Any, beta1: Any, beta2: Any,
    epsilon: Any, grad: Any,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    rate = lr * np.sqrt(1 - beta2_power) / (1 - beta1_power)
    return var - m * rate / (np.sqrt(v) + epsilon), m, v


def _adam_w(
    var: Any, m: Any, v: Any, beta1_power: Any, beta2_power: Any, lr: Any, decay: Any, beta1: Any,
    beta2: Any, epsilon: Any, grad: Any,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Adam with decoupled weight decay; the powers are those of the step before."""
    m = m * beta1 + grad * (1 - beta1)
    v = v * beta2 + grad * grad * (1 - beta2)
    size = np.sqrt(v / (1 - beta2_power * beta2)) + epsilon
    return var * (1 - lr * decay) - lr * m / (1 - beta1_power * beta1) / size, m, v


def _adam_w_v2(
    var: Any, m: Any, v: Any, grad: Any, step: Any, lr: float, beta1: float, beta2: float,
    epsilon: float, decay: float,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """As `_adam_w`, with the number of the step (from 1) in memory and the rest as attributes."""
    power1, power2 = (np.power(np.float32(x), step - 1) for x in (beta1, beta2))
    return _adam_w(var, m, v, power1, power2, lr, decay, beta1, beta2, epsilon, grad)


def _rms_prop(
    var: Any, ms: Any, mom: Any, lr: Any, grad: Any, rho: float, momentum: float, epsilon: float
) -> tuple[np.ndarray, ...]:
    ms = ms + (grad * grad - ms) * (1 - rho)
    mom = mom * momentum + lr * grad / np.sqrt(ms + epsilon)
    return var - mom, ms, mom


def _mul_momentum(
    var: Any, accum: Any, lr: Any, grad: Any, momentum: Any, scale: Any
) -> tuple[np.ndarray, ...]:
    accum = accum * momentum + grad * scale
    return var - accum * lr, accum


def _lamb(
    grad: Any, v: Any, m: Any, param: Any, beta1: Any, rest1: Any, beta2: Any, rest2: Any,
    epsilon: Any, steps: Any, use_decay: Any, decay: Any,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """LAMB's update before the trust ratio; `rest1` = 1 - beta1, `rest2` = 1 - beta2."""
    v = v * beta2 + grad * grad * rest2
    m = m * beta1 + grad * rest1
    unbiased = m / (1 - beta1**steps)
    size = np.sqrt(v / (1 - beta2**steps)) + epsilon
    return unbiased / size + param * decay * use_decay, v, m


def _lamb_weight(
    w_norm: np.ndarray, g_norm: np.ndarray, lr: np.ndarray, update: np.ndarray, param: np.ndarray
) -> np.ndarray:
    """param - lr · trust ratio · update; the ratio is 1 where a norm is 0."""
    good = (w_norm > 0) & (g_norm > 0)
    ratio = np.where(good, w_norm / np.where(good, g_norm, 1), 1)
    return np.asarray(param - ratio * lr * update)


def _clip_by_norm(x: np.ndarray, zero: np.ndarray, one: np.ndarray, top: np.ndarray) -> np.ndarray:
    """max(√x, top) where x is positive, else max(x, top): the divisor of clip_by_norm."""
    positive = x > zero
    root = np.sqrt(np.where(positive, x, one))
    return np.asarray(np.maximum(np.where(positive, root, x), top))


def _momentum(
    var: np.ndarray, accum: np.ndarray, lr: np.ndarray, grad: np.ndarray, momentum: np.ndarray
) -> tuple[np.ndarray, ...]:
    accum = accum * momentum + grad
    return var - accum * lr, accum


_optimizer("ApplyAdam", _adam, 14)
_optimizer("ApplyAdamW", _adam_w, 14)
_optimizer(
    "ApplyAdamWV2", _adam_w_v2, 14, lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, decay=0.01
)
_optimizer("ApplyRMSProp", _rms_prop, 12, rho=0.9, momentum=0.9, epsilon=1e-10)
_optimizer("FusedMulApplyMomentum", _mul_momentum, 5)
_optimizer("ApplyMomentum", _momentum, 4)
_optimizer("LambApplyOptimizerAssign", _lamb, 30)
elementwise("LambApplyWeightAssign", _lamb_weight, passes=3)
elementwise("ClipByNormNoDivSum", _clip_by_norm, passes=6)
