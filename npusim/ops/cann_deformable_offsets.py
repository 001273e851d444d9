"""DeformableOffsets: the sampling half of a deformable convolution, as CANN splits it."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check, supported
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema
from npusim.ops.sampling import sample
from npusim.ops.window import WINDOW_ATTRS, Window


@operator("DeformableOffsets")
class DeformableOffsets(Operator):
    """What a deformable convolution multiplies: x at its window's shifted taps, taps side by side.

    Inputs x [N, C, H, W], offset [N, group · taps · 2, OH, OW], optional mask [N, group · taps,
    OH, OW]; the output [N, C, KH · OH, KW · OW] is for a convolution whose stride is its kernel.
    Offsets are in ONNX's order.
    """

    attrs = schema(**{**WINDOW_ATTRS, "kernel_shape": ...}, offset_group=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, offset, group = x.type(0), x.type(1).shape, attrs["offset_group"]
        supported(len(t.shape) == 4, f"a DeformConv on {t.shape}", "[N, C, H, W]")
        window = Window.of(t.shape[2:], tuple(attrs["kernel_shape"]), attrs)
        want = (t.shape[0], group * window.taps * 2, *window.out)
        check(offset == want and t.shape[1] % group == 0, f"offsets {offset}", f"{want}")
        if x.has(2):
            mask, want = x.type(2).shape, (t.shape[0], group * window.taps, *window.out)
            check(mask == want, f"a mask {mask}", f"{want}")
        extent = tuple(k * n for k, n in zip(window.kernel, window.out, strict=True))
        return [TensorType((*t.shape[:2], *extent), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        window = Window.of(x[0].shape[2:], tuple(attrs["kernel_shape"]), attrs)
        n, group = x[0].shape[0], attrs["offset_group"]
        shape = (n, group, *window.kernel, 2, *window.out)
        at = np.moveaxis(x[1].reshape(shape), 4, -1).astype(np.float32)
        for axis in (0, 1):
            taps = np.arange(window.kernel[axis]) * window.dilations[axis] - window.begin[axis]
            starts = np.arange(window.out[axis]) * window.strides[axis]
            place = [1, 1, 1, 1]
            place[axis], place[axis + 2] = len(taps), len(starts)
            at[..., axis] += (taps[:, None] + starts).reshape(place)
        parts = x[0].reshape(n * group, -1, *window.size)
        size = np.array(window.size)
        points = at.reshape(n * group, *at.shape[2:])
        y = [
            sample(a, p, "linear", "zeros", 0 * size, size)
            for a, p in zip(parts, points, strict=True)
        ]
        whole = np.stack(y).reshape(n, group, -1, *window.kernel, *window.out)
        if len(x) > 2 and x[2] is not None:
            whole = whole * x[2].reshape(n, group, 1, *window.kernel, *window.out)
        return [whole.transpose(0, 1, 2, 5, 3, 6, 4).reshape(out[0].shape)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=8 * out[0].size)  # four corners
