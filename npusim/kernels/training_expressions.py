"""Vector programs of gradients, losses and optimiser steps: further entries of `LOWER`.

Scalars that the step brings as operands are spread over the tile first, as CANN's kernels do:
what is computed from them then costs whole passes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npusim.kernels.expressions import LOWER, Lower
from npusim.kernels.vector_program import BOOL, F16, Builder, Value

_ROOT = math.sqrt(2 / math.pi)
BYTE = np.dtype(np.uint8)


def _when(b: Builder, condition: str, x: Value, y: Value, then: Value, other: Value) -> Value:
    """`then` where x compares so with y, else `other`."""
    mask = b(condition, x, y, dtype=BOOL, is_mask=True)
    return b("sel", mask, then, other, dtype=then.dtype)


def _gelu_grad(b: Builder, attrs: Any, dy: Value, x: Value, y: Any = None) -> Value:
    """dy · (1+t)/2 · (1 + (1-t)·x·s), t = tanh(z/2) = (e^z - 1) / (e^z + 1)."""
    square = b.mul(x, x)
    z = b.mul(b.add(b.mul(b.mul(square, x), 0.044715), x), 2 * _ROOT)
    e = b("exp", b.min(z, 30.0))
    t = b.div(b.add(e, -1.0), b.add(e, 1.0))
    slope = b.mul(b.add(b.mul(square, 3 * 0.044715 * _ROOT), _ROOT), x)
    inner = b.add(b.mul(b.add(b.neg(t), 1.0), slope), 1.0)
    half = b.mul(b.add(t, 1.0), 0.5)
    return b.mul(b.mul(inner, half), dy)


def _cross_entropy(b: Builder, attrs: Any, x: Value, target: Value) -> Value:
    tail = b("ln", b.add(b("exp", b.neg(b("abs", x))), 1.0))
    return b.add(b.sub(b("relu", x), b.mul(x, target)), tail)


def _cross_entropy_grad(b: Builder, attrs: Any, x: Value, target: Value, dy: Value) -> Value:
    p = b.div(1.0, b.add(b("exp", b.neg(x)), 1.0))
    return b.mul(b.sub(p, target), dy)


def _relu_grad(b: Builder, attrs: Any, dy: Value, x: Value) -> Value:
    """dy · [x > 0] without a select: x scaled until every positive number is 1 or more, clipped."""
    scales = (2.0**15, 2.0**9) if x.dtype == F16 else (2.0**100, 2.0**60)
    gate = b.min(b.max(b.mul(b.mul(x, scales[0]), scales[1]), 0.0), 1.0)
    return b.mul(dy, gate)


def _swish_grad(b: Builder, attrs: Any, dy: Value, x: Value, y: Value) -> Value:
    """dy · (y + s·(1 - y)), s the sigmoid of x and y = x·s."""
    s = b.div(1.0, b.add(b("exp", b.neg(x)), 1.0))
    return b.mul(b.add(b.mul(b.sub(1.0, y), s), y), dy)


def _leaky_relu_grad(b: Builder, attrs: Any, dy: Value, x: Value) -> Value:
    """dy · (α + (1 - α)·[x > 0])."""
    alpha = attrs["alpha"]
    gate = _relu_grad(b, attrs, b.const(1.0 - alpha, dy), x)
    return b.mul(dy, b.add(gate, alpha))


def _winner(condition: str) -> Any:
    def lower(b: Builder, attrs: Any, dy: Value, x: Value, y: Value) -> Value:
        return _when(b, condition, x, y, dy, b.const(0.0, dy))

    return lower


def _adam(
    b: Builder, attrs: Any, var: Value, m: Value, v: Value, power1: Value, power2: Value,
    lr: Value, beta1: Value, beta2: Value, epsilon: Value, grad: Value,
) -> tuple[Value, ...]:  # fmt: skip
    """CANN's schedule for this operator keeps its scalars in registers."""
    m = b.add(m, b.by_scalar("mul", b.sub(grad, m), b.sub(1.0, beta1)))
    v = b.add(v, b.by_scalar("mul", b.sub(b.mul(grad, grad), v), b.sub(1.0, beta2)))
    rate = b.div(b.mul(lr, b("sqrt", b.sub(1.0, power2))), b.sub(1.0, power1))
    step = b.div(b.by_scalar("mul", m, rate), b.by_scalar("add", b("sqrt", v), epsilon))
    return b.sub(var, step), m, v


def _adam_w_step(
    b: Builder, state: tuple[Value, Value, Value, Value], betas: tuple[Any, Any], epsilon: Any,
    corrections: tuple[Value, Value], rate: Value, kept: Value,
) -> tuple[Value, ...]:  # fmt: skip
    """Adam with decoupled decay: var · kept - rate · m̂ / (√v̂ + ε).

    `corrections`: 1/(1 - β₁ᵗ), 1/(1 - β₂ᵗ); `kept` = 1 - rate · decay. Betas and epsilon are
    scalars or constants.
    """
    var, m, v, grad = state

    def times(x: Value, s: Any) -> Value:
        return b.by_scalar("mul", x, s) if isinstance(s, Value) else b.mul(x, s)

    rest1, rest2 = (b.sub(1.0, x) if isinstance(x, Value) else 1.0 - x for x in betas)
    m = b.add(times(m, betas[0]), times(grad, rest1))
    v = b.add(times(v, betas[1]), times(b.mul(grad, grad), rest2))
    size = b("sqrt", times(v, corrections[1]))
    size = b.by_scalar("add", size, epsilon) if isinstance(epsilon, Value) else b.add(size, epsilon)
    step = b.div(times(m, b.mul(corrections[0], rate)), size)
    return b.sub(times(var, kept), step), m, v


def _adam_w(
    b: Builder, attrs: Any, var: Value, m: Value, v: Value, power1: Value, power2: Value,
    lr: Value, decay: Value, beta1: Value, beta2: Value, epsilon: Value, grad: Value,
) -> tuple[Value, ...]:  # fmt: skip
    """The powers are those of the step before."""
    corrections = tuple(
        b.div(1.0, b.sub(1.0, b.mul(p, beta))) for p, beta in ((power1, beta1), (power2, beta2))
    )
    kept = b.sub(1.0, b.mul(lr, decay))
    state = (var, m, v, grad)
    return _adam_w_step(b, state, (beta1, beta2), epsilon, corrections, lr, kept)  # type: ignore[arg-type]


def _adam_w_v2(
    b: Builder, attrs: Any, var: Value, m: Value, v: Value, grad: Value, step: Value
) -> tuple[Value, ...]:
    """Rates and betas are attributes, the step a number in memory."""
    betas = (attrs["beta1"], attrs["beta2"])
    corrections = tuple(
        b.div(1.0, b.sub(1.0, b("exp", b.mul(step, math.log(beta))))) for beta in betas
    )
    rate, kept = (b.const(x, step) for x in (attrs["lr"], 1.0 - attrs["lr"] * attrs["decay"]))
    state, epsilon = (var, m, v, grad), attrs["epsilon"]
    return _adam_w_step(b, state, betas, epsilon, corrections, rate, kept)  # type: ignore[arg-type]


def _rms_prop(
    b: Builder, attrs: Any, var: Value, ms: Value, mom: Value, lr: Value, grad: Value
) -> tuple[Value, ...]:
    ms = b.add(ms, b.mul(b.sub(b.mul(grad, grad), ms), 1 - attrs["rho"]))
    step = b.div(b.mul(grad, lr), b("sqrt", b.add(ms, attrs["epsilon"])))
    mom = b.add(b.mul(mom, attrs["momentum"]), step)
    return b.sub(var, mom), ms, mom


def _mul_momentum(
    b: Builder, attrs: Any, var: Value, accum: Value, lr: Value, grad: Value, momentum: Value,
    scale: Value,
) -> tuple[Value, ...]:  # fmt: skip
    accum = b.add(b.mul(accum, momentum), b.mul(grad, scale))
    return b.sub(var, b.mul(accum, lr)), accum


def _momentum(
    b: Builder, attrs: Any, var: Value, accum: Value, lr: Value, grad: Value, momentum: Value
) -> tuple[Value, ...]:
    accum = b.add(b.mul(accum, momentum), grad)
    return b.sub(var, b.mul(accum, lr)), accum


def _correction(b: Builder, beta: Value, steps: Value) -> Value:
    """1 - beta^steps, as e^(steps·ln beta)."""
    return b.sub(1.0, b("exp", b.mul(steps, b("ln", beta))))


def _lamb(
    b: Builder, attrs: Any, grad: Value, v: Value, m: Value, param: Value, *scalars: Value
) -> tuple[Value, ...]:
    """The bias corrections too run over the whole tile: CANN spreads the betas before them.

    A scalar is spread where it is first used, which keeps few registers alive.
    """
    beta1, rest1, beta2, rest2, epsilon, steps, use_decay, decay = scalars

    def wide(s: Value) -> Value:
        return b.spread(s, grad.varies)

    v = b.add(b.mul(v, wide(beta2)), b.mul(b.mul(grad, grad), wide(rest2)))
    size = b("sqrt", b.div(v, _correction(b, wide(beta2), wide(steps))))
    size = b.add(size, wide(epsilon))
    m = b.add(b.mul(m, wide(beta1)), b.mul(grad, wide(rest1)))
    update = b.div(b.div(m, _correction(b, wide(beta1), wide(steps))), size)
    return b.add(b.mul(b.mul(param, wide(decay)), wide(use_decay)), update), v, m


def _positive(b: Builder, x: Value, zero: Value) -> Value:
    """1 where x > 0, else 0, as CANN's greater has it: clipped to the smallest number, scaled."""
    x = b.max(b.min(b.sub(x, zero), b.const(2.0**-126, x)), zero)
    x = b.mul(b.mul(b.mul(x, 2.0**62), 2.0**62), 4.0)
    return b.conv(b.conv(x, F16), BYTE)


def _blend(b: Builder, gate: Value, then: Value, other: Value) -> Value:
    """`then` where gate is 1, `other` where it is 0, by arithmetic on the gate's bytes."""
    half = b.conv(gate, F16)
    rest = b.conv(b.add(b.neg(half), 1.0), then.dtype)
    return b.add(b.mul(b.conv(half, then.dtype), then), b.mul(rest, other))


def _lamb_weight(
    b: Builder, attrs: Any, w_norm: Value, g_norm: Value, lr: Value, update: Value, param: Value
) -> Value:
    """param - ratio · (update · lr): both scalars are spread over the tile."""
    zero, one = b.const(0.0, g_norm), b.const(1.0, g_norm)
    g_gate, w_gate = _positive(b, g_norm, zero), _positive(b, w_norm, zero)
    guard = b.conv(b.conv(g_gate, F16), one.dtype)  # no division by a norm of zero
    quotient = b.div(w_norm, b.add(g_norm, b.sub(one, guard)))
    ratio = _blend(b, w_gate, _blend(b, g_gate, quotient, one), one)
    return b.sub(param, b.mul(b.mul(update, lr), ratio))


def _clip_by_norm(b: Builder, attrs: Any, x: Value, zero: Value, one: Value, top: Value) -> Value:
    """max(√x, top) where x is positive, else max(x, top): one comparison serves both selects."""
    mask = b("gt", x, zero, dtype=BOOL, is_mask=True)
    root = b("sqrt", b("sel", mask, x, one, dtype=x.dtype))
    return b.max(b("sel", mask, root, x, dtype=x.dtype), top)


TRAINING: dict[str, Lower] = {
    "GeluGrad": _gelu_grad,
    "TanhGrad": lambda b, attrs, y, dy: b.mul(b.sub(1.0, b.mul(y, y)), dy),
    "SigmoidGrad": lambda b, attrs, y, dy: b.mul(b.mul(b.sub(1.0, y), y), dy),
    "SwishGrad": _swish_grad,
    "LeakyReluGrad": _leaky_relu_grad,
    "ReluGrad": _relu_grad,
    "MaximumGrad": _winner("ge"),
    "MinimumGrad": _winner("le"),
    "SigmoidCrossEntropyWithLogits": _cross_entropy,
    "SigmoidCrossEntropyWithLogitsGrad": _cross_entropy_grad,
    "ApplyAdam": _adam,
    "ApplyAdamW": _adam_w,
    "ApplyAdamWV2": _adam_w_v2,
    "ApplyRMSProp": _rms_prop,
    "FusedMulApplyMomentum": _mul_momentum,
    "ApplyMomentum": _momentum,
    "LambApplyOptimizerAssign": _lamb,
    "LambApplyWeightAssign": _lamb_weight,
    "ClipByNormNoDivSum": _clip_by_norm,
}  # fmt: skip
LOWER.update(TRAINING)
