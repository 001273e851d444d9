"""Elementwise operators as vector programs: one entry of `LOWER` each.

Multi-step formulas run in fp32 and avoid the select instruction, which does not repeat on first
generation chips (23–26 cycles a repeat), wherever arithmetic does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np

from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.kernels.vector_program import BOOL, F16, F32, I32, Arg, Builder, Value
from npusim.ops.elementary import ERF_P, ERF_Q

Attrs = Mapping[str, Any]
Lower = Callable[..., Any]  #: gives a Value, or several

LOWER: dict[str, Lower] = {}  #: operator → fn(builder, attrs, *operands in the working type)

#: Operators whose fp16 result is exact (given exact operands) and commutes with rounding.
EXACT = {"Relu", "Max", "Min", "Abs", "Neg", "Identity", "Dropout", "Clip", "Where", "ReluGrad"}
#: Operators that round once.
ROUND_ONCE = {"Add", "Sub", "Mul", "LeakyRelu", "Sum"}
#: Operators exact on stored values, wrong on values rounded on the way.
EXACT_FIRST = {
    "Equal",
    "Greater",
    "Less",
    "GreaterOrEqual",
    "LessOrEqual",
    "Floor",
    "Ceil",
    "Round",
    "IsNaN",
    "IsInf",
    "Not",
    "And",
    "Or",
    "Xor",
    "Cast",
}
#: Operators that take integers in the vector unit's own types.
INTEGER = {
    "Add",
    "Sub",
    "Mul",
    "Max",
    "Min",
    "Sum",
    "Neg",
    "Abs",
    "Clip",
    "Where",
    "Identity",
    "Dropout",
    "Relu",
    "Equal",
    "Greater",
    "Less",
    "GreaterOrEqual",
    "LessOrEqual",
    "Cast",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseNot",
    "BitwiseXor",
}
#: Operators that see their operands as stored.
RAW = {
    "Cast",
    "Where",
    "Not",
    "And",
    "Or",
    "Xor",
    "Identity",
    "Dropout",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseNot",
    "BitwiseXor",
}


#: Why there is no program for an operator that looks like one.
WHY_NOT = {
    "Mod": ", which rounds quotients: remainders would not be exact",
    "BitShift": ", whose vshl and vshr shift all elements by one amount",
}


def _op(*names: str) -> Callable[[Lower], Lower]:
    def register(fn: Lower) -> Lower:
        LOWER.update(dict.fromkeys(names, fn))
        return fn

    return register


def _unary(name: str, fn: Callable[[Builder, Value], Value]) -> None:
    LOWER[name] = lambda b, attrs, x: fn(b, x)


def _binary(name: str, fn: Callable[[Builder, Arg, Arg], Value]) -> None:
    LOWER[name] = lambda b, attrs, x, y: fn(b, x, y)


# -- arithmetic ----

_binary("Add", lambda b, x, y: b.add(x, y))
_binary("Sub", lambda b, x, y: b.sub(x, y))
_binary("Mul", lambda b, x, y: b.mul(x, y))
_binary("Div", lambda b, x, y: b.div(x, y))
LOWER["Sum"] = lambda b, attrs, *x: reduce(b.add, x)
LOWER["Max"] = lambda b, attrs, *x: reduce(b.max, x)
LOWER["Min"] = lambda b, attrs, *x: reduce(b.min, x)
LOWER["Mean"] = lambda b, attrs, *x: b.mul(reduce(b.add, x), 1.0 / len(x))
_unary("Neg", lambda b, x: b.neg(x))
_unary("Reciprocal", lambda b, x: b.div(1.0, x))
_unary("Exp", lambda b, x: b("exp", x))
_unary("Log", lambda b, x: b("ln", x))
_unary("Sqrt", lambda b, x: b("sqrt", x))
_unary("Floor", lambda b, x: b("floor", x))
_unary("Ceil", lambda b, x: b("ceil", x))
_unary("Round", lambda b, x: b("round", x))
_unary("Relu", lambda b, x: b("relu", x))


@_op("Abs")
def _abs(b: Builder, attrs: Attrs, x: Value) -> Value:
    return b("abs", x) if x.dtype.kind != "i" else b.max(x, b.neg(x))


@_op("Identity", "Dropout")
def _identity(b: Builder, attrs: Attrs, x: Value, *rest: Arg) -> Value:
    return x


def sign(b: Builder, x: Value) -> Value:
    """Scaled until every normal number exceeds 1, then clipped to ±1."""
    big = b.mul(b.mul(x, 2.0**100), 2.0**60)
    return b.min(b.max(big, -1.0), 1.0)


_unary("Sign", sign)


@_op("Pow")
def _pow(b: Builder, attrs: Attrs, x: Arg, y: Arg) -> Value:
    if isinstance(y, Value):
        if not isinstance(x, Value) and 0 < x < math.inf:
            return b("exp", b.mul(y, math.log(x)))
        return _general_pow(b, b.as_value(x, y), y)
    assert isinstance(x, Value), "two constants"
    if math.isfinite(y) and y == int(y) and abs(y) <= 8:
        return _integer_pow(b, x, int(y))
    if abs(y) == 0.5:
        root = b("sqrt", x)
        return root if y > 0 else b.div(1.0, root)
    if not math.isfinite(y) or y != int(y):
        return b("exp", b.mul(b("ln", x), y))
    size = b("exp", b.mul(b("ln", b("abs", x)), y))
    return b.mul(size, sign(b, x)) if int(y) % 2 else size


def _integer_pow(b: Builder, x: Value, n: int) -> Value:
    if n < 0:
        return b.div(1.0, _integer_pow(b, x, -n))
    if n == 0:
        return b.const(1.0, x)
    if n == 1:
        return x
    half = _integer_pow(b, x, n // 2)
    square = b.mul(half, half)
    return b.mul(square, x) if n % 2 else square


def _general_pow(b: Builder, x: Value, y: Value) -> Value:
    """exp(y·ln|x|); for negative x: times (-1)^y, NaN where y is not whole."""
    log = b.min(b.max(b("ln", b("abs", x)), -3e38), 3e38)
    size = b("exp", b.mul(y, log))
    odd = b.sub(y, b.mul(b("floor", b.mul(y, 0.5)), 2.0))
    signed = b.mul(size, b.sub(1.0, b.mul(odd, 2.0)))
    broken = b("ne", b("floor", y), y, dtype=BOOL, is_mask=True)
    signed = b("sel", broken, b.const(math.nan, signed), signed, dtype=F32)
    negative = b("lt", x, b.const(0.0, x), dtype=BOOL, is_mask=True)
    return b("sel", negative, signed, size, dtype=F32)


# -- error function and its relatives ----


#: -ln(Φ(x) / Φ(-x)) / x in x², highest power first: minimax over |x| < 6 of what the error does to
#: x·Φ(x), against 2^-11 of it (2^-24 at least): 2.1 of these at most, some two units of an fp16.
PHI = (-7.03568255e-06, 9.3469101e-04, -0.0754667675, -1.5931717)


def horner(b: Builder, coefficients: tuple[float, ...], x: Value) -> Value:
    """A polynomial, highest power first."""
    y = b.add(b.mul(x, coefficients[0]), coefficients[1])
    for c in coefficients[2:]:
        y = b.add(b.mul(y, x), c)
    return y


def _erf(b: Builder, x: Value) -> Value:
    x = b.min(b.max(x, -4.0), 4.0)
    square = b.mul(x, x)
    y = b.mul(horner(b, ERF_P, square), x)
    y = b.div(y, horner(b, ERF_Q, square))
    return b.min(b.max(y, -1.0), 1.0)


_unary("Erf", _erf)


@_op("Gelu")
def _gelu(b: Builder, attrs: Attrs, x: Value) -> Value:
    """tanh form as CANN computes it: x·e^min(z,0) / (1 + e^-|z|), z = 2√(2/π)(x + 0.044715x³).

    The form with erf is x·Φ(x) = x / (1 + e^-z), z = ln(Φ(x) / Φ(-x)): odd, and a polynomial of
    seventh degree is near enough for results of 16 bits (see `PHI`).
    """
    if attrs["approximate"] != "tanh" and b.half:
        z = b.mul(horner(b, PHI, b.mul(x, x)), x)
        return b.div(x, b.add(b("exp", z), 1.0))
    if attrs["approximate"] != "tanh":
        y = b.add(_erf(b, b.mul(x, math.sqrt(0.5))), 1.0)
        return b.mul(b.mul(y, x), 0.5)
    cube = b.mul(b.mul(x, x), x)
    z = b.mul(b.add(b.mul(cube, 0.044715), x), 2 * math.sqrt(2 / math.pi))
    top = b.mul(b("exp", b.min(z, 0.0)), x)
    low = b.add(b("exp", b.neg(b("abs", z))), 1.0)
    return b.div(top, low)


# -- exponential family ----


def _sigmoid(b: Builder, x: Value) -> Value:
    return b.div(1.0, b.add(b("exp", b.neg(x)), 1.0))


def _expm1(b: Builder, x: Value) -> Value:
    return b.add(b("exp", x), -1.0)


def _softplus(b: Builder, x: Value) -> Value:
    tail = b("ln", b.add(b("exp", b.neg(b("abs", x))), 1.0))
    return b.add(b("relu", x), tail)


_unary("Sigmoid", _sigmoid)
_unary("Softplus", _softplus)
_unary("Softsign", lambda b, x: b.div(x, b.add(b("abs", x), 1.0)))
LOWER["Swish"] = lambda b, attrs, x: b.mul(x, _sigmoid(b, b.mul(x, attrs["alpha"])))


@_op("Tanh")
def _tanh(b: Builder, attrs: Attrs, x: Value) -> Value:
    """(e^2x - 1) / (e^2x + 1); saturated beyond ±15."""
    e = b("exp", b.mul(b.min(b.max(x, -15.0), 15.0), 2.0))
    return b.div(b.add(e, -1.0), b.add(e, 1.0))


@_op("Mish")
def _mish(b: Builder, attrs: Attrs, x: Value) -> Value:
    """x·tanh(ln(1 + e^x)) = x·(n² + 2n) / (n² + 2n + 2), n = e^x."""
    n = b("exp", b.min(x, 20.0))
    top = b.mul(b.add(n, 2.0), n)
    return b.mul(b.div(top, b.add(top, 2.0)), x)


def _elu(b: Builder, x: Value, alpha: float) -> Value:
    low = b.mul(_expm1(b, b.min(x, 0.0)), alpha)
    return b.add(b("relu", x), low)


LOWER["Elu"] = lambda b, attrs, x: _elu(b, x, attrs["alpha"])
LOWER["Selu"] = lambda b, attrs, x: b.mul(_elu(b, x, attrs["alpha"]), attrs["gamma"])


@_op("Celu")
def _celu(b: Builder, attrs: Attrs, x: Value) -> Value:
    alpha = attrs["alpha"]
    low = b.mul(_expm1(b, b.mul(x, 1.0 / alpha)), alpha)
    return b.add(b("relu", x), b.min(low, 0.0))


# -- rectifiers ----


@_op("LeakyRelu")
def _leaky(b: Builder, attrs: Attrs, x: Value) -> Value:
    alpha = attrs["alpha"]
    if alpha == 0:
        return b("relu", x)
    scaled = b.mul(x, alpha)
    return b.max(x, scaled) if alpha <= 1 else b.min(x, scaled)


@_op("PRelu")
def _prelu(b: Builder, attrs: Attrs, x: Arg, slope: Arg) -> Value:
    if not isinstance(x, Value):
        assert isinstance(slope, Value), "two constants"
        x = b.const(x, slope)
    return b.add(b("relu", x), b.mul(b.min(x, 0.0), slope))


@_op("ThresholdedRelu")
def _thresholded(b: Builder, attrs: Attrs, x: Value) -> Value:
    above = b("gt", x, b.const(attrs["alpha"], x), dtype=BOOL, is_mask=True)
    return b("sel", above, x, b.const(0.0, x), dtype=x.dtype)


@_op("Shrink")
def _shrink(b: Builder, attrs: Attrs, x: Value) -> Value:
    """Beyond ±lambd, x less the bias (its sign that of x); else 0."""
    limit, bias = attrs["lambd"], attrs["bias"]
    zero = b.const(0.0, x)
    low = b("lt", x, b.const(-limit, x), dtype=BOOL, is_mask=True)
    y = b("sel", low, b.add(x, bias) if bias else x, zero, dtype=x.dtype)
    high = b("gt", x, b.const(limit, x), dtype=BOOL, is_mask=True)
    return b("sel", high, b.add(x, -bias) if bias else x, y, dtype=x.dtype)


@_op("Clip")
def _clip(b: Builder, attrs: Attrs, x: Value, low: Any = None, high: Any = None) -> Value:
    y = x if low is None else b.max(x, low)
    return y if high is None else b.min(y, high)


def _hard_sigmoid(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    return b.min(b.max(b.add(b.mul(x, alpha), beta), 0.0), 1.0)


LOWER["HardSigmoid"] = lambda b, attrs, x: _hard_sigmoid(b, x, attrs["alpha"], attrs["beta"])
_unary("HardSwish", lambda b, x: b.mul(_hard_sigmoid(b, x, 1 / 6, 0.5), x))


# -- comparisons, booleans, selection ----


def _compare(op: str) -> Lower:
    def lower(b: Builder, attrs: Attrs, x: Arg, y: Arg) -> Value:
        like = x if isinstance(x, Value) else y
        assert isinstance(like, Value), "two constants"
        left, right = b.as_value(x, like), b.as_value(y, like)
        return b(op, left, right, dtype=BOOL, is_mask=True)

    return lower


LOWER["Equal"] = _compare("eq")
LOWER["Greater"] = _compare("gt")
LOWER["Less"] = _compare("lt")
LOWER["GreaterOrEqual"] = _compare("ge")
LOWER["LessOrEqual"] = _compare("le")
_unary("IsNaN", lambda b, x: b("ne", x, x, dtype=BOOL, is_mask=True))


@_op("IsInf")
def _is_inf(b: Builder, attrs: Attrs, x: Value) -> Value:
    negative, positive = bool(attrs["detect_negative"]), bool(attrs["detect_positive"])
    y = b("abs", x) if negative and positive else b.neg(x) if negative else x
    target = math.inf if negative or positive else math.nan
    return b("eq", y, b.const(target, y), dtype=BOOL, is_mask=True)


def _registers(b: Builder, *args: Arg) -> Iterator[Value]:
    """Operands of an instruction that takes no constant."""
    like = next(a for a in args if isinstance(a, Value))
    for a in args:
        yield b.as_value(a, like)


def _booleans(b: Builder, *args: Arg) -> Iterator[Value]:
    """The same as bytes; a constant is put there by way of fp16, which the unit fills in."""
    like = next(a for a in args if isinstance(a, Value))
    for a in args:
        wide = a if isinstance(a, Value) else b.const(float(a), Value(F16, like.varies))
        yield b.conv(wide, BOOL) if wide.dtype == F16 else b.to_bool(wide)


LOWER["And"] = lambda b, attrs, x, y: b("and", *_booleans(b, x, y))
LOWER["Or"] = lambda b, attrs, x, y: b("or", *_booleans(b, x, y))
LOWER["Xor"] = lambda b, attrs, x, y: b("ne", *_booleans(b, x, y), dtype=BOOL)
_unary("Not", lambda b, x: b("not", b.to_bool(x)))
_binary("BitwiseAnd", lambda b, x, y: b("and", *_registers(b, x, y)))
_binary("BitwiseOr", lambda b, x, y: b("or", *_registers(b, x, y)))
_unary("BitwiseNot", lambda b, x: b("not", x))


@_op("BitwiseXor")
def _bitwise_xor(b: Builder, attrs: Attrs, x: Arg, y: Arg) -> Value:
    """(x or y) and not (x and y): the unit has no exclusive or."""
    left, right = _registers(b, x, y)
    return b("and", b("or", left, right), b("not", b("and", left, right)))


@_op("Where")
def _where(b: Builder, attrs: Attrs, condition: Arg, x: Arg, y: Arg) -> Value:
    like = b.num(x if isinstance(x, Value) else y)
    if not isinstance(condition, Value):
        assert isinstance(like, Value), "three constants"
        return b.as_value(b.num(x if condition else y), like)
    if not isinstance(like, Value):  # two constants
        integers = isinstance(x, int) and isinstance(y, int)
        like = Value(I32 if integers else b.work, condition.varies)
    left = b.as_value(b.num(x), like)
    right = b.as_value(b.num(y), like)
    return b("sel", b.to_mask(condition), left, right, dtype=like.dtype)


# -- types ----


@_op("Cast")
def _cast(b: Builder, attrs: Attrs, x: Value) -> Value:
    to = DType.of(attrs["to"])
    if x.is_mask:
        x = b.to_bool(x)
    if to is DType.BOOL:
        return x if x.dtype == BOOL else _nonzero(b, x)
    small = to.np.itemsize == 1
    if small and x.dtype.kind in "fV":  # truncate, then wrap
        x = b.conv(x, I32)
    return b.conv(x, to.np)


def _nonzero(b: Builder, x: Value) -> Value:
    x = b.conv(x, F16) if x.dtype.itemsize == 1 else x
    return b("ne", x, b.const(0, x), dtype=BOOL, is_mask=True)


# -- inference batch normalisation ----


@_op("BatchNormalization")
def _batch_norm(
    b: Builder, attrs: Attrs, x: Value, scale: Value, bias: Value, mean: Value, variance: Value
) -> Value:
    deviation = b("sqrt", b.add(variance, attrs["epsilon"]))
    factor = b.div(scale, deviation)
    shift = b.sub(bias, b.mul(mean, factor))
    return b.add(b.mul(x, factor), shift)


# -- chains ----


def working_type(op_types: list[tuple[str, int]], floats: set[np.dtype]) -> np.dtype:
    """fp16 when every operand is fp16 and the chain rounds at most once, else fp32.

    `op_types`: (operator, number of operands) in order.
    """
    if floats != {np.dtype(np.float16)}:
        return F32
    rounded = False
    for op, n in op_types:
        if op in EXACT:
            continue
        if rounded or (op not in ROUND_ONCE and op not in EXACT_FIRST) or n > 2:
            return F32
        rounded = op in ROUND_ONCE
    return np.dtype(np.float16)


def lower(b: Builder, op_type: str, attrs: Attrs, operands: list[Any]) -> list[Value]:
    """The results of one operator on registers, constants and absent (None) operands.

    Raises:
        UnsupportedError: there is no vector program for the operator or its operand types.
    """
    fn = LOWER.get(op_type)
    if fn is None:
        raise UnsupportedError(
            f"{op_type} on the vector unit{WHY_NOT.get(op_type, '')}",
            ", ".join(sorted(LOWER)),
            "run it on AI CPU",
        )
    integers = [v for v in operands if isinstance(v, Value) and v.dtype.kind in "iu"]
    if integers and op_type not in INTEGER:
        raise UnsupportedError(
            f"{op_type} of {integers[0].dtype.name} on the vector unit",
            "float16, float32 and bfloat16",
            "run it on AI CPU",
        )
    if op_type not in RAW:
        operands = [None if v is None else b.num(v) for v in operands]
    while operands and operands[-1] is None:
        operands = operands[:-1]
    found = fn(b, attrs, *operands)
    return list(found) if isinstance(found, tuple) else [found]
