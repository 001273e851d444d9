"""Random launches of the pools that have kernels of their own."""

from __future__ import annotations

from random import Random
from typing import Any

from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec

F16, NC = DType.FLOAT16, Layout.NC1HWC0


def _out(size: tuple[int, ...], attrs: dict[str, Any]) -> tuple[int, ...]:
    """Outputs of a window without pads."""
    pairs = zip(size, attrs["kernel_shape"], attrs["strides"], strict=True)
    return tuple((n - k) // s + 1 for n, k, s in pairs)


def _window(rng: Random, rank: int) -> dict[str, Any]:
    """A window of 1 … 3 taps along each of `rank` axes."""
    return {
        "kernel_shape": tuple(rng.randint(1, 3) for _ in range(rank)),
        "strides": tuple(rng.randint(1, 3) for _ in range(rank)),
    }


def _launch(op: str, inputs: tuple[OperandSpec, ...], y: OperandSpec, attrs: Any) -> KernelArgs:
    return KernelArgs(op, inputs, (y,), tuple(sorted(attrs.items())))


def _image(rng: Random, high: int, most: int) -> OperandSpec:
    """Images of a few blocks of channels."""
    sides = (rng.randint(3, high), rng.randint(3, high))
    return OperandSpec((rng.randint(1, most), 16 * rng.randint(1, 3), *sides), F16, NC)


def columns(rng: Random, size: int) -> KernelArgs:
    """Windowed pools."""
    x, attrs = _image(rng, 17, 9), _window(rng, 2)
    y = OperandSpec((*x.shape[:2], *_out(x.shape[2:], attrs)), F16, NC)
    return _launch(rng.choice(["MaxPool", "AveragePool"]), (x,), y, attrs)


def fold(rng: Random, size: int) -> KernelArgs:
    """Pools over whole images."""
    x = _image(rng, 30, 12)
    y = OperandSpec((*x.shape[:2], 1, 1), F16, NC)
    return _launch(rng.choice(["GlobalMaxPool", "GlobalAveragePool"]), (x,), y, {})


def volumes(rng: Random, size: int) -> KernelArgs:
    """Maxima of volumes."""
    shape = (rng.randint(1, 4), 16 * rng.randint(1, 2), *(rng.randint(3, n) for n in (14, 9, 9)))
    attrs = _window(rng, 3)
    out = (*shape[:2], *_out(shape[2:], attrs))
    x, y = (OperandSpec(s, F16, Layout.NDC1HWC0) for s in (shape, out))
    return _launch("MaxPool", (x,), y, attrs)


def averages(rng: Random, size: int) -> KernelArgs:
    """Means of volumes on the cube, and the gradient of means of images."""
    if rng.random() < 0.5:
        args = volumes(rng, size)
        x, y, attrs = args.operands[0], args.outputs[0], dict(args.attrs)
        kd, kh, kw = attrs["kernel_shape"]
        filters = OperandSpec((kd * x.shape[1] // 16 * kh * kw, 1, 16, 16), F16)
        return _launch("AvgPool3DD", (x, filters), y, attrs)
    dx, attrs = _image(rng, 14, 9), _window(rng, 2)
    dy = OperandSpec((*dx.shape[:2], *_out(dx.shape[2:], attrs)), F16, NC)
    filters = OperandSpec((dx.shape[1] // 16, *attrs["kernel_shape"], 1, 16, 16), F16)
    attrs |= {"pads": (0, 0, 0, 0), "image_shape": dx.shape[2:]}
    return _launch("AvgPoolGradVm", (dy, dy, filters), dx, attrs)


def argmax(rng: Random, size: int) -> KernelArgs:
    """MaxPoolWithArgmax: maxima and a bit per tap and output; or its gradient."""
    x, attrs = _image(rng, 15, 7), _window(rng, 2)
    out = _out(x.shape[2:], attrs)
    y = OperandSpec((*x.shape[:2], *out), F16, NC)
    taps = attrs["kernel_shape"][0] * attrs["kernel_shape"][1]
    positions = (-(-out[0] * out[1] // 16) + 1) * 16
    mask = OperandSpec((x.shape[0], x.shape[1] // 16, taps, positions), DType.UINT16)
    if rng.random() < 0.5:
        return _launch("MaxPoolGradWithArgmax", (x, y, mask), x, attrs)
    return KernelArgs("MaxPoolWithArgmax", (x,), (y, mask), tuple(sorted(attrs.items())))


MAKERS = {
    "BlockDepthwise": averages,
    "Pool3D": volumes,
    "PoolArgmax": argmax,
    "PoolArgmaxV1": argmax,
    "PoolColumns": columns,
    "PoolFold": fold,
}
