"""Signal processing: Fourier transforms, and the matrix from frequencies to mels."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import axis_of, check, static, supported
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema

_FLOPS = 5  #: of a radix-2 butterfly, an element and level


def _transform_work(n: int, length: int) -> Work:
    """`n` elements in transforms of `length`."""
    return Work(vector_ops=_FLOPS * n * max(1, (length - 1).bit_length()))


def _complex(x: np.ndarray) -> np.ndarray:
    """The numbers whose real (and imaginary) parts lie in the last dimension."""
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]


def _parts(x: np.ndarray) -> np.ndarray:
    return np.stack([x.real, x.imag], -1).astype(np.float64)


@operator("DFT")
class DFT(Operator):
    """Discrete Fourier transform along an axis; the last dimension holds real and imaginary part.

    Inputs: data, optional length, optional axis (-2). One-sided, a forward transform gives the
    first half of its result, and an inverse one takes that and gives real numbers.
    """

    attrs = schema(inverse=0, onesided=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        check(len(t.shape) > 1 and t.shape[-1] in (1, 2), f"a signal {t.shape}", "[… n …, 1 or 2]")
        axis = axis_of(int(static(x, 2, "axis").item()) if x.has(2) else -2, len(t.shape))
        check(axis != len(t.shape) - 1, f"axis {axis} of {t.shape}", "one before the last")
        length = int(static(x, 1, "dft_length").item()) if x.has(1) else None
        shape = list(t.shape)
        n = _length(shape[axis], length, attrs)
        back = attrs["inverse"] and attrs["onesided"]
        shape[axis] = n // 2 + 1 if attrs["onesided"] and not back else n
        shape[-1] = 1 if back else 2
        return [TensorType(tuple(shape), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axis = int(x[2].item()) if len(x) > 2 and x[2] is not None else -2
        axis = axis_of(axis, x[0].ndim)
        given = int(x[1].item()) if len(x) > 1 and x[1] is not None else None
        n, data = _length(x[0].shape[axis], given, attrs), _complex(x[0])
        if not attrs["inverse"]:
            y = np.fft.fft(data, n, axis)
            kept = out[0].shape[axis]
            return [_parts(np.take(y, np.arange(kept), axis))]
        if attrs["onesided"]:
            return [np.fft.irfft(data, n, axis)[..., None]]
        return [_parts(np.fft.ifft(data, n, axis))]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        longest = max(x[0].shape[:-1], default=1)
        return _transform_work(max(x[0].size, out[0].size) // 2, longest)


def _length(extent: int, given: int | None, attrs: Attrs) -> int:
    """Elements of the full transform."""
    if given is not None:
        return given
    return 2 * (extent - 1) if attrs["inverse"] and attrs["onesided"] else extent


@operator("STFT")
class STFT(Operator):
    """Transforms of overlapping frames: [batch, frames, frequencies, 2].

    Inputs: signal [batch, n, 1 or 2], step, optional window, optional frame length.
    """

    attrs = schema(onesided=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, step = x.type(0), int(static(x, 1, "frame_step").item())
        check(
            len(t.shape) == 3 and t.shape[2] in (1, 2), f"a signal {t.shape}", "[batch, n, 1 or 2]"
        )
        if x.has(3):
            length = int(static(x, 3, "frame_length").item())
        else:
            length = x.type(2).shape[0] if x.has(2) else t.shape[1]
        supported(
            not (attrs["onesided"] and t.shape[2] == 2),
            "a one-sided STFT of complex numbers",
            "real numbers, or onesided=0",
        )
        check(
            step > 0 and 0 < length <= t.shape[1],
            f"frames of {length}, {step} apart, of {t.shape[1]} elements",
            "frames no longer than the signal, and a step of at least 1",
        )
        if x.has(2):
            check(x.type(2).shape == (length,), f"a window {x.type(2).shape}", f"({length},)")
        frames = 1 + (t.shape[1] - length) // step
        bins = length // 2 + 1 if attrs["onesided"] else length
        return [TensorType((t.shape[0], frames, bins, 2), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        _, frames, bins, _ = out[0].shape
        window = x[2] if len(x) > 2 else None
        if len(x) > 3 and x[3] is not None:
            length = int(x[3].item())
        else:
            length = x[0].shape[1] if window is None else len(window)
        at = np.arange(frames)[:, None] * int(x[1].item()) + np.arange(length)
        parts = _complex(x[0])[:, at] * (1 if window is None else window)
        return [_parts(np.fft.fft(parts, length, -1)[..., :bins])]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return _transform_work(out[0].size // 2, out[0].shape[2])


@operator("MelWeightMatrix")
class MelWeightMatrix(Operator):
    """[dft_length / 2 + 1, mels]: triangles that are equally wide in mels.

    Inputs: mels, dft_length, sample rate, lowest and highest frequency (Hz), one number each.
    """

    attrs = schema(output_datatype="float32")

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        mels, length = (int(static(x, i, r).item()) for i, r in enumerate(("mels", "dft_length")))
        return [TensorType((length // 2 + 1, mels), DType.of(attrs["output_datatype"]))]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        mels, length, rate, low, high = (a.item() for a in x)
        to_mel = 2595 / np.log(10)
        ends = [to_mel * np.log1p(f / 700) for f in (low, high)]
        steps = ends[0] + np.arange(mels + 2) * (ends[1] - ends[0]) / (mels + 2)
        edges = ((length + 1) * 700 * np.expm1(steps / to_mel) // rate).astype(np.int64)
        bins = np.arange(out[0].shape[0])[:, None]
        left, centre, right = edges[:-2], edges[1:-1], edges[2:]
        rise = (bins - left) / np.maximum(centre - left, 1)
        fall = (right - bins) / np.maximum(right - centre, 1)
        y = np.where((bins >= left) & (bins <= centre), rise, 0.0)
        y = np.where((bins >= centre) & (bins < right), fall, y)
        return [np.where(bins == centre, 1.0, y)]
