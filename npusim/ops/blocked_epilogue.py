"""Bias and epilogue steps on a part of a convolution's result, in place where that can be."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, EpilogueStep, TensorType
from npusim.ir.layout import channels_in_blocks, channels_last
from npusim.ops.parts import Part, Steps
from npusim.ops.registry import get_operator, round_to, widen
from npusim.ops.scratch import Scratch


def fp32(x: np.ndarray) -> np.ndarray:
    """`x` itself, or its values in fp32."""
    wide = x if x.dtype == np.float32 else widen(x)
    assert wide is not None
    return wide


class Finish:
    """The end of a part: bias and epilogue on fp32 values, and the result to where it goes.

    Life: made once for a part; `room` gives the memory for the values in front of all that,
    calling it then turns them into the result. fp32 results in channels-last never leave their
    place.

    Args:
        bias: (Wo·Co1·C0,), fp32, of a row of pixels.
        steps: epilogue steps with their operand in NC1HWC0.
        out: the whole result (N, Co1, Ho, Wo, C0).
    """

    def __init__(self, bias: np.ndarray, steps: Steps, part: Part, out: np.ndarray) -> None:
        self._bias, self._steps = bias, part.steps(steps, out.shape)
        self._target = part.of(out, out.shape)
        turned = channels_last(self._target)
        n, rows, wo, c1, c0 = self._shape = turned.shape
        self._rows = n, rows, wo * c1 * c0
        if out.dtype == np.float32 and turned.flags.c_contiguous:
            self._place: np.ndarray | None = turned.reshape(self._rows)
        else:
            self._place = None

    def room(self, scratch: Scratch) -> np.ndarray:
        """fp32 (n, rows, Wo·C1·C0) for the part, contiguous."""
        return scratch.array(self._rows) if self._place is None else self._place

    def __call__(self, y: np.ndarray) -> None:
        """Finish the values in `room`."""
        y += self._bias
        if y is self._place:
            start = self._target
        else:
            start = channels_in_blocks(y.reshape(self._shape))
        z = apply_steps(start, self._steps)
        if z is not self._target:
            store(z, self._target)


def apply_steps(y: np.ndarray, steps: Steps) -> np.ndarray:
    """Epilogue steps on fp32 values, in place where that can be."""
    rest = list(steps)
    while rest:
        bounds = _bounds(rest[:2])
        if bounds is not None:
            np.clip(y, *bounds, out=y)
            del rest[:2]
        else:
            y = _apply(y, *rest.pop(0))
    return y


def _bounds(steps: Steps) -> tuple[np.ndarray, np.ndarray] | None:
    """The two bounds where the steps are those of a Clip (the upper one wins in both)."""
    if [s.op_type for s, _ in steps] != ["Max", "Min"]:
        return None
    low, high = (widen(a) for _, a in steps)
    if low is None or high is None or low.size != 1 or high.size != 1:
        return None
    return low.reshape(()), high.reshape(())


def _apply(y: np.ndarray, step: EpilogueStep, operand: np.ndarray | None) -> np.ndarray:
    if step.op_type == "Relu":
        return np.maximum(y, 0, out=y)
    wide = widen(operand)
    if wide is not None and wide.size == 1:
        wide = wide.reshape(())
    if wide is not None and step.op_type in ("Add", "Sum"):
        return np.add(wide, y, out=y if wide.shape in ((), y.shape) else None)
    op = get_operator(step.op_type)
    args = [y] if wide is None else [y, wide]
    return op.compute(args, {**op.attrs, **dict(step.attrs)}, ())[0]


def store(y: np.ndarray, out: np.ndarray) -> None:
    """Round to the type of `out`, and put there."""
    out[...] = round_to(y, TensorType(out.shape, DType.of(out.dtype)))
