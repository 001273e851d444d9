"""Iou: how much boxes overlap, as CANN has it."""

from __future__ import annotations

import numpy as np

from npusim.ir import TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


@operator("Iou")
class Iou(Operator):
    """Boxes [n, 4], ground truths [m, 4] as x0, y0, x1, y1 → [m, n].

    `mode` iou: intersection / union; iof: intersection / ground truth. Sides count from pixel to
    pixel where eps is 1 or more (1 is added to each); else eps is added to the boxes' own sides.
    """

    attrs = schema(mode="iou", eps=1.0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        boxes, truths = x.type(0), x.type(1)
        for t in (boxes, truths):
            check(len(t.shape) == 2 and t.shape[1] == 4, f"boxes of shape {t.shape}", "(n, 4)")
        check(attrs["mode"] in ("iou", "iof"), f"mode {attrs['mode']!r}", "iou or iof")
        return [TensorType((truths.shape[0], boxes.shape[0]), boxes.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        boxes, truths = x[0], x[1][:, None]
        own, shared = sides(attrs["eps"])

        def area(a: np.ndarray) -> np.ndarray:
            size: np.ndarray = (a[..., 2] - a[..., 0] + own) * (a[..., 3] - a[..., 1] + own)
            return size

        low = np.maximum(boxes[None, :, :2], truths[..., :2])
        high = np.minimum(boxes[None, :, 2:], truths[..., 2:])
        inter = np.maximum(high - low + shared, np.float32(0)).prod(-1)
        whole = area(truths) if attrs["mode"] == "iof" else area(boxes) + area(truths) - inter
        return [inter / whole]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=20 * out[0].size)


def sides(eps: float) -> tuple[np.float32, np.float32]:
    """What is added to the sides of boxes, and of their intersections."""
    return (np.float32(1), np.float32(1)) if eps >= 1 else (np.float32(eps), np.float32(0))
