"""Object detection: boxes that stay after suppression, and pools over regions of interest."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check, static, supported
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


@operator("NonMaxSuppression")
class NonMaxSuppression(Operator):
    """[n, 3]: batch, class and box of those that overlap no better one of their class.

    Inputs: boxes [batch, n, 4], scores [batch, class, n], most boxes of a class, the IoU above
    which a box is dropped, and the score that a box must exceed.
    """

    attrs = schema(center_point_box=0)
    data_inputs = (0, 1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        boxes, scores = x.type(0).shape, x.type(1).shape
        check(
            len(boxes) == len(scores) == 3
            and (boxes[0], boxes[1], 4) == (scores[0], scores[2], boxes[2]),
            f"boxes {boxes} with scores {scores}",
            "[batch, n, 4] and [batch, class, n]",
        )
        roles = ("boxes", "scores", "most boxes", "IoU threshold", "score threshold")
        given = [static(x, i, role) if x.has(i) else None for i, role in enumerate(roles)]
        return [TensorType((len(_selected(given, attrs)), 3), DType.INT64)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.array(_selected(x, attrs), np.int64).reshape(-1, 3)]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        """A sort of each class's scores; the IoU (14 operations) of all boxes with each kept."""
        n = x[0].shape[1]
        return Work(vector_ops=x[1].size * max(1, n.bit_length()) + 14 * n * out[0].shape[0])


def _selected(x: Arrays, attrs: Attrs) -> list[tuple[int, int, int]]:
    """(batch, class, box), class by class, best first."""
    number = [
        None if i >= len(x) or x[i] is None or not x[i].size else x[i].item() for i in (2, 3, 4)
    ]
    most, limit, least = int(number[0] or 0), number[1] or 0.0, number[2]
    found = []
    for batch in range(x[0].shape[0]):
        corners = _corners(x[0][batch].astype(np.float32), bool(attrs["center_point_box"]))
        for kind, scores in enumerate(x[1][batch]):
            order = np.argsort(-scores.astype(np.float32), kind="stable")
            left = order if least is None else order[scores[order] > least]
            for _ in range(min(most, len(left))):
                if not len(left):
                    break
                best, left = left[0], left[1:]
                found.append((batch, kind, int(best)))
                left = left[_iou(corners[best], corners[left]) <= limit]
    return found


def _corners(boxes: np.ndarray, centred: bool) -> np.ndarray:
    """[n, 4]: low corner, high corner; of [centre, size], or of two opposite corners."""
    a, b = boxes[:, :2], boxes[:, 2:]
    if centred:
        a, b = a - b / 2, a + b / 2
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], 1)


def _iou(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union; 0 where one of the boxes is empty."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), 1)
    area, areas = np.prod(box[2:] - box[:2]), np.prod(others[:, 2:] - others[:, :2], 1)
    union = area + areas - shared
    return np.where((shared > 0) & (union > 0), shared / np.where(union > 0, union, 1), 0)


@operator("RoiAlign")
class RoiAlign(Operator):
    """Pools of bilinear samples over regions: x [N, C, H, W], rois [n, 4], batch of each [n]."""

    attrs = schema(
        coordinate_transformation_mode="half_pixel",
        mode="avg",
        output_height=1,
        output_width=1,
        sampling_ratio=0,
        spatial_scale=1.0,
    )

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, rois, batches = x.type(0), x.type(1).shape, x.type(2).shape
        check(
            len(t.shape) == 4 and rois == (*batches, 4) and len(batches) == 1,
            f"regions {rois} of batches {batches} on {t.shape}",
            "[n, 4], [n] and [N, C, H, W]",
        )
        supported(attrs["mode"] in ("avg", "max"), f"mode={attrs['mode']!r}", "avg, max")
        extent = (attrs["output_height"], attrs["output_width"])
        return [TensorType((rois[0], t.shape[1], *extent), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y = np.zeros(out[0].shape, np.float32)
        for i, (roi, batch) in enumerate(zip(x[1], x[2], strict=True)):
            y[i] = _pooled(x[0][int(batch)], roi, attrs)
        return [y]

    @staticmethod
    def work(x: Types, out: Types, attrs: Attrs) -> Work:
        """Four corners of each sample; as many samples a bin as the ratio says, or one a pixel."""
        t, n = x[0], out[0].size
        bins = max(1, attrs["output_height"] * attrs["output_width"])
        samples = attrs["sampling_ratio"] ** 2 or -(-t.shape[2] * t.shape[3] // bins)
        return Work(vector_ops=8 * n * samples)


def _pooled(x: np.ndarray, roi: np.ndarray, attrs: Attrs) -> np.ndarray:
    """One region of x [C, H, W]."""
    half = attrs["coordinate_transformation_mode"] == "half_pixel"
    begin_w, begin_h, end_w, end_h = roi * attrs["spatial_scale"] - (0.5 if half else 0.0)
    rows = _samples(begin_h, end_h, attrs["output_height"], x.shape[1], half, attrs)
    columns = _samples(begin_w, end_w, attrs["output_width"], x.shape[2], half, attrs)
    corners = []
    for at_h, weight_h in rows:
        for at_w, weight_w in columns:
            value = x[:, at_h[:, :, None, None], at_w]
            corners.append(value * weight_h[:, :, None, None] * weight_w)
    # [C, bins_h, samples_h, bins_w, samples_w]
    if attrs["mode"] == "max":
        return np.asarray(np.max(corners, 0).max((2, 4), initial=-np.inf))
    count = max(corners[0].shape[2] * corners[0].shape[4], 1)
    return np.asarray(sum(corners).sum((2, 4)) / count)


def _samples(
    begin: float, end: float, bins: int, size: int, half: bool, attrs: Attrs
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(index, weight) of the lower and the upper neighbour: each [bins, samples]."""
    extent = end - begin if half else max(end - begin, 1.0)
    step = extent / bins
    n = int(attrs["sampling_ratio"]) or int(np.ceil(step))
    at = begin + np.arange(bins)[:, None] * step + (np.arange(n) + 0.5) * step / max(n, 1)
    inside = ((at >= -1) & (at <= size)).astype(np.float32)
    at = np.clip(at, 0, size - 1)
    low = at.astype(np.int64)
    high, above = np.minimum(low + 1, size - 1), (at - low).astype(np.float32)
    return [(low, (1 - above) * inside), (high, above * inside)]
