"""LSTM, GRU and RNN written out in other operators, step by step: the one definition of all three.

`unrolled` says it for any `Algebra`: `ops.recurrent` computes arrays, the compiler writes nodes.
The input's share of all gates, of all steps, is one matrix product before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check, supported

V = TypeVar("V")

#: Gates of a cell, in the order in which weights hold them: i o f c, z r h, and one.
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
#: Activation → defaults of its alpha and beta (none: it has no such parameter).
_PARAMETERS: dict[str, tuple[float, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softsign": (),
    "Softplus": (),
    "LeakyRelu": (0.01,),
    "ThresholdedRelu": (1.0,),
    "Elu": (1.0,),
    "HardSigmoid": (0.2, 0.5),
    "Affine": (1.0, 0.0),
    "ScaledTanh": (1.0, 1.0),
}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


class Algebra(Protocol[V]):
    """What `unrolled` computes with: values, and operators on them."""

    def op(self, op_type: str, *inputs: V, attrs: Mapping[str, Any] | None = None) -> V:
        """The result of an operator."""

    def split(self, x: V, axis: int, parts: int) -> list[V]:
        """x in equal parts."""

    def constant(self, value: np.ndarray) -> V:
        """A value from an array."""

    def type(self, x: V) -> TensorType:
        """Shape and element type of a value."""


@dataclass(frozen=True)
class Activation:
    """An activation function and its parameters."""

    name: str
    parameters: tuple[float, ...]

    def of(self, m: Algebra[V], x: V) -> V:
        """The activation of x."""
        if self.name == "Affine":
            return m.op("Add", m.op("Mul", x, _number(m, self.parameters[0], x)),
                        _number(m, self.parameters[1], x))  # fmt: skip
        if self.name == "ScaledTanh":
            inner = m.op("Mul", x, _number(m, self.parameters[1], x))
            return m.op("Mul", m.op("Tanh", inner), _number(m, self.parameters[0], x))
        attrs = dict(zip(("alpha", "beta"), self.parameters, strict=False))
        return m.op(self.name, x, attrs=attrs)


def activations(op_type: str, attrs: Mapping[str, Any], directions: int) -> list[Activation]:
    """The activations of all directions.

    Raises:
        UnsupportedError: one that ONNX does not name.
        GraphError: too few of them.
    """
    given = attrs["activations"] or list(_ACTIVATIONS[op_type]) * directions
    wanted = len(_ACTIVATIONS[op_type]) * directions
    check(len(given) == wanted, f"activations {given}", f"{wanted} of them")
    known = {name.lower(): name for name in _PARAMETERS}
    alphas, betas = list(attrs["activation_alpha"] or ()), list(attrs["activation_beta"] or ())
    found = []
    for name in given:
        supported(name.lower() in known, f"activation {name!r}", ", ".join(_PARAMETERS))
        defaults = _PARAMETERS[known[name.lower()]]
        values = [q.pop(0) if q else d for q, d in zip((alphas, betas), defaults, strict=False)]
        found.append(Activation(known[name.lower()], tuple(values)))
    return found


def _number(m: Algebra[V], value: float, like: V) -> V:
    return m.constant(np.array(value, m.type(like).dtype.np))


def _reshape(m: Algebra[V], x: V, *shape: int) -> V:
    return m.op("Reshape", x, m.constant(np.array(shape, np.int64)))


def _slice(m: Algebra[V], x: V, axis: int, start: int, stop: int) -> V:
    """x[start:stop] along an axis."""
    if m.type(x).shape[axis] == stop - start:
        return x
    return m.op("Slice", x, *(m.constant(np.array([n], np.int64)) for n in (start, stop, axis)))


def _direction(m: Algebra[V], x: V, d: int) -> V:
    """x[d]: of the first axis, which it loses."""
    return _reshape(m, _slice(m, x, 0, d, d + 1), *m.type(x).shape[1:])


def _transposed(m: Algebra[V], x: V, *perm: int) -> V:
    return m.op("Transpose", x, attrs={"perm": list(perm)})


@dataclass(frozen=True)
class _Cell(Generic[V]):
    """One direction of a recurrent operator.

    Attributes:
        hidden: H; r: [G·H, H]; bias: of the hidden state's own product (GRU), peephole: i, o, f.
    """

    m: Algebra[V]
    attrs: Mapping[str, Any]
    functions: Sequence[Activation]
    r: V
    hidden: int
    bias: V | None
    peephole: tuple[V, ...]

    def activate(self, which: int, x: V) -> V:
        """f, g or h of x, which is clipped before."""
        m, clip = self.m, self.attrs["clip"]
        if clip is not None:
            x = m.op("Clip", x, _number(m, -clip, x), _number(m, clip, x))
        return self.functions[which].of(m, x)

    def product(self, h: V, start: int, stop: int) -> V:
        """h · R' of gates start … stop."""
        rows = _slice(self.m, self.r, 0, start * self.hidden, stop * self.hidden)
        return self.m.op("Gemm", h, rows, attrs={"transB": 1})

    def _peeped(self, gate: V, which: int, c: V) -> V:
        if not self.peephole:
            return gate
        return self.m.op("Add", gate, self.m.op("Mul", c, self.peephole[which]))

    def _one_minus(self, x: V) -> V:
        return self.m.op("Sub", _number(self.m, 1.0, x), x)

    def rnn(self, x: V, state: tuple[V, ...]) -> tuple[V, ...]:
        """h after a step; x is the input's share of the gates."""
        return (self.activate(0, self.m.op("Add", x, self.product(state[0], 0, 1))),)

    def lstm(self, x: V, state: tuple[V, ...]) -> tuple[V, ...]:
        """h and c after a step."""
        m, (h, c) = self.m, state
        i, o, f, g = m.split(m.op("Add", x, self.product(h, 0, 4)), 1, 4)
        i = self.activate(0, self._peeped(i, 0, c))
        if self.attrs["input_forget"]:
            f = self._one_minus(i)
        else:
            f = self.activate(0, self._peeped(f, 2, c))
        c = m.op("Add", m.op("Mul", f, c), m.op("Mul", i, self.activate(1, g)))
        o = self.activate(0, self._peeped(o, 1, c))
        return m.op("Mul", o, self.functions[2].of(m, c)), c

    def gru(self, x: V, state: tuple[V, ...]) -> tuple[V, ...]:
        """h after a step."""
        m, (h,) = self.m, state
        xz, xr, xh = m.split(x, 1, 3)
        if self.attrs["linear_before_reset"]:
            pz, pr, ph = m.split(self.product(h, 0, 3), 1, 3)
            ph = ph if self.bias is None else m.op("Add", ph, self.bias)
            r = self.activate(0, m.op("Add", xr, pr))
            new = m.op("Mul", r, ph)
        else:
            pz, pr = m.split(self.product(h, 0, 2), 1, 2)
            r = self.activate(0, m.op("Add", xr, pr))
            new = self.product(m.op("Mul", r, h), 2, 3)
        z = self.activate(0, m.op("Add", xz, pz))
        new = self.activate(1, m.op("Add", xh, new))
        kept = m.op("Mul", z, h)
        return (m.op("Add", m.op("Mul", self._one_minus(z), new), kept),)


def _biases(m: Algebra[V], op_type: str, b: V, hidden: int, linear: bool) -> tuple[V, V | None]:
    """The bias of the input's product, and of the hidden state's where it cannot be in there."""
    n = GATES[op_type] * hidden
    own, other = _slice(m, b, 0, 0, n), _slice(m, b, 0, n, 2 * n)
    if op_type != "GRU" or not linear:
        return m.op("Add", own, other), None
    gates = m.op("Add", _slice(m, own, 0, 0, 2 * hidden), _slice(m, other, 0, 0, 2 * hidden))
    last = _slice(m, own, 0, 2 * hidden, n)
    whole = m.op("Concat", gates, last, attrs={"axis": 0})
    return whole, _slice(m, other, 0, 2 * hidden, n)


def _walk(
    m: Algebra[V],
    step: Callable[[V, tuple[V, ...]], tuple[V, ...]],
    shares: Sequence[V],
    state: tuple[V, ...],
    masks: Sequence[V] | None,
    order: Iterator[int],
) -> tuple[list[V], tuple[V, ...]]:
    """Every step's h in the order of time, and the last state. Where a mask is 0, the state stays
    and h is 0."""
    found: dict[int, V] = {}
    for t in order:
        new = step(shares[t], state)
        found[t] = new[0]
        if masks is not None:
            found[t] = m.op("Where", masks[t], new[0], _number(m, 0.0, new[0]))
            new = tuple(m.op("Where", masks[t], n, s) for n, s in zip(new, state, strict=True))
        state = new
    return [found[t] for t in sorted(found)], state


def _masks(m: Algebra[V], lengths: V, steps: int, batch: int) -> list[V]:
    """Per step, [batch, 1]: is the sequence longer?"""
    column = _reshape(m, lengths, batch, 1)
    dtype = m.type(lengths).dtype.np
    return [m.op("Greater", column, m.constant(np.array(t, dtype))) for t in range(steps)]


def unrolled(
    m: Algebra[V], op_type: str, inputs: Sequence[V | None], attrs: Mapping[str, Any]
) -> list[V]:
    """Y, Y_h and, of an LSTM, Y_c: the operator's results, by operators of `m`.

    Args:
        inputs: X, W, R[, B, sequence_lens, initial_h[, initial_c, P]] as ONNX has them.
    """
    full = [*inputs, *[None] * (8 - len(inputs))]
    x, w, r, b, lengths, *initial = full
    assert x is not None and w is not None and r is not None
    first = bool(attrs["layout"])
    x = _transposed(m, x, 1, 0, 2) if first else x
    steps, batch, size = m.type(x).shape
    hidden = m.type(r).shape[-1]
    masks = None if lengths is None else _masks(m, lengths, steps, batch)
    flat = _reshape(m, x, steps * batch, size)
    reverse = _DIRECTIONS[attrs["direction"]]
    functions, each = activations(op_type, attrs, len(reverse)), len(_ACTIVATIONS[op_type])
    ys, states = [], []
    for d, backwards in enumerate(reverse):
        own: V | None = None
        other: V | None = None
        if b is not None:
            linear = bool(attrs.get("linear_before_reset"))
            found: tuple[V, V | None] = _biases(m, op_type, _direction(m, b, d), hidden, linear)
            own, other = found
        p = initial[2]
        peephole = () if p is None else tuple(m.split(_direction(m, p, d), 0, 3))
        cell = _Cell(
            m, attrs, functions[d * each : (d + 1) * each], _direction(m, r, d), hidden,
            other, peephole,
        )  # fmt: skip
        operands = [flat, _direction(m, w, d), *([] if own is None else [own])]
        share = m.op("Gemm", *operands, attrs={"transB": 1})
        state = tuple(
            _initial(m, initial[i], d, first, (batch, hidden), x)
            for i in range(2 if op_type == "LSTM" else 1)
        )
        order = reversed(range(steps)) if backwards else iter(range(steps))
        step = getattr(cell, op_type.lower())
        y, state = _walk(m, step, m.split(share, 0, steps), state, masks, order)
        ys.append(y)
        states.append(state)
    return _results(m, ys, states, (steps, batch, hidden), first)


def _initial(
    m: Algebra[V], given: V | None, d: int, first: bool, shape: tuple[int, int], like: V
) -> V:
    """[batch, hidden] of a direction, zeros when it is not given."""
    if given is None:
        return m.constant(np.zeros(shape, m.type(like).dtype.np))
    return _direction(m, _transposed(m, given, 1, 0, 2) if first else given, d)


def _joined(m: Algebra[V], parts: Sequence[V], axis: int) -> V:
    return parts[0] if len(parts) == 1 else m.op("Concat", *parts, attrs={"axis": axis})


def _results(
    m: Algebra[V],
    ys: Sequence[Sequence[V]],
    states: Sequence[tuple[V, ...]],
    extents: tuple[int, int, int],
    first: bool,
) -> list[V]:
    """Y, Y_h[, Y_c] from every direction's steps and last state."""
    steps, batch, hidden = extents
    whole = [_reshape(m, _joined(m, y, 0), steps, 1, batch, hidden) for y in ys]
    y = _joined(m, whole, 1)
    results = [_transposed(m, y, 2, 0, 1, 3) if first else y]
    for last in zip(*states, strict=True):
        h = _joined(m, [_reshape(m, s, 1, batch, hidden) for s in last], 0)
        results.append(_transposed(m, h, 1, 0, 2) if first else h)
    return results
