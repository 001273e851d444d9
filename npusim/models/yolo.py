"""A YOLO-style detector in the form of YOLOv8: trunk, feature pyramid, decoupled head.

Boxes are read from distributions (softmax over 16 bins, then their mean) around fixed anchors.
Names are those of Ultralytics' modules; the default size is YOLOv8n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.errors import ModelError
from npusim.models.builder import GraphBuilder
from npusim.models.layers import IMAGE, RESIDUAL_GAMMA, batch_norm, conv
from npusim.models.registry import model

BINS = 16  #: of a side's distribution
STRIDES = (8, 16, 32)  #: pixels per cell of the three levels
SHIFT = 0.5  #: of the normalisations: SiLU takes more from small signals, these keep them up


@model("yolov8n", "YOLOv8n detector (3.2 M parameters)", IMAGE)
def yolov8n(
    g: GraphBuilder,
    *,
    batch: int = 1,
    height: int = 640,
    width: int = 640,
    classes: int = 80,
    base: int = 16,
) -> None:
    """Boxes (x, y, width, height in pixels) and class probabilities, (batch, 4 + classes, cells).

    `base` is the number of channels at half size, 16 for YOLOv8n.
    """
    if height % STRIDES[-1] or width % STRIDES[-1]:
        raise ModelError(
            f"image size {height}x{width} of a YOLO",
            f"multiples of {STRIDES[-1]}: its coarsest level has cells of that many pixels",
            "pad or crop the image",
        )
    x = g.input("input", (batch, 3, height, width))
    levels = _pyramid(g, _trunk(g, x, base), base)
    g.output(_detect(g, levels, batch, classes))


def _conv(
    g: GraphBuilder,
    x: str,
    name: str,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    gamma: float = 1.0,
) -> str:
    """Convolution, BatchNormalization and SiLU (Sigmoid and Mul)."""
    y = conv(g, x, f"{name}.conv", channels, kernel, stride=stride)
    y = batch_norm(g, y, f"{name}.bn", gamma, epsilon=1e-3, shift=SHIFT)
    return g.node("Mul", f"{name}.act", y, g.node("Sigmoid", f"{name}.sigmoid", y))


def _c2f(g: GraphBuilder, x: str, name: str, channels: int, depth: int, shortcut: bool) -> str:
    """Half the channels go through `depth` bottlenecks; all of their results are joined."""
    half = channels // 2
    parts = [*g.split(f"{name}.split", _conv(g, x, f"{name}.cv1", channels, 1), [half] * 2, axis=1)]
    for i in range(depth):
        y = _conv(g, parts[-1], f"{name}.m.{i}.cv1", half, 3)
        y = _conv(g, y, f"{name}.m.{i}.cv2", half, 3, gamma=RESIDUAL_GAMMA if shortcut else 1.0)
        parts.append(g.node("Add", f"{name}.m.{i}.add", parts[-1], y) if shortcut else y)
    return _conv(g, g.node("Concat", f"{name}.concat", *parts, axis=1), f"{name}.cv2", channels, 1)


def _sppf(g: GraphBuilder, x: str, name: str) -> str:
    """Maxima over windows of 5, 9 and 13 pixels, by three pools of 5 one after the other."""
    channels = g.shape(x)[1]
    parts = [_conv(g, x, f"{name}.cv1", channels // 2, 1)]
    for i in range(3):
        attrs = {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2] * 4}
        parts.append(g.add("MaxPool", f"{name}.m.{i}", parts[-1:], attrs))
    return _conv(g, g.node("Concat", f"{name}.concat", *parts, axis=1), f"{name}.cv2", channels, 1)


def _trunk(g: GraphBuilder, x: str, base: int) -> list[str]:
    """Features at an eighth, a sixteenth and a thirty-second of the image's size."""
    x = _conv(g, x, "model.0", base, 3, stride=2)
    found = []
    for i, depth in enumerate((1, 2, 2, 1)):
        channels = base * 2 << i
        x = _conv(g, x, f"model.{2 * i + 1}", channels, 3, stride=2)
        x = _c2f(g, x, f"model.{2 * i + 2}", channels, depth, shortcut=True)
        found.append(x)
    return [*found[1:3], _sppf(g, x, "model.9")]


def _pyramid(g: GraphBuilder, features: Sequence[str], base: int) -> list[str]:
    """Coarse features go up to the fine ones, and come down again."""
    fine, middle, coarse = features
    up = _upsampled(g, coarse, "model.10")
    up = g.node("Concat", "model.11", up, middle, axis=1)
    middle = _c2f(g, up, "model.12", 8 * base, 1, shortcut=False)
    up = g.node("Concat", "model.14", _upsampled(g, middle, "model.13"), fine, axis=1)
    fine = _c2f(g, up, "model.15", 4 * base, 1, shortcut=False)
    down = _conv(g, fine, "model.16", 4 * base, 3, stride=2)
    down = g.node("Concat", "model.17", down, middle, axis=1)
    middle = _c2f(g, down, "model.18", 8 * base, 1, shortcut=False)
    down = _conv(g, middle, "model.19", 8 * base, 3, stride=2)
    down = g.node("Concat", "model.20", down, coarse, axis=1)
    return [fine, middle, _c2f(g, down, "model.21", 16 * base, 1, shortcut=False)]


def _upsampled(g: GraphBuilder, x: str, name: str) -> str:
    """Every pixel four times."""
    *front, height, width = g.shape(x)
    return g.node(
        "Resize",
        name,
        x,
        "",
        "",
        g.ints(f"{name}.sizes", (*front, 2 * height, 2 * width)),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _detect(g: GraphBuilder, levels: Sequence[str], batch: int, classes: int) -> str:
    """Two branches a level, joined over all cells; boxes decoded."""
    rows = g.ints("cells.shape", (batch, 4 * BINS + classes, -1))
    channels = g.shape(levels[0])[1]
    widths = max(16, channels // 4, 4 * BINS), max(channels, min(classes, 100))
    found = []
    for i, x in enumerate(levels):
        parts = []
        for branch, width, outputs in (("cv2", widths[0], 4 * BINS), ("cv3", widths[1], classes)):
            name = f"model.22.{branch}.{i}"
            y = _conv(g, _conv(g, x, f"{name}.0", width, 3), f"{name}.1", width, 3)
            parts.append(conv(g, y, f"{name}.2", outputs, 1, bias=True))
        y = g.node("Concat", f"model.22.concat.{i}", *parts, axis=1)
        found.append(g.node("Reshape", f"model.22.reshape.{i}", y, rows))
    y = g.node("Concat", "model.22.cells", *found, axis=2)
    sides, scores = g.split("model.22.split", y, [4 * BINS, classes], axis=1)
    boxes = _boxes(g, _distances(g, sides, batch), [g.shape(x)[2:] for x in levels])
    scores = g.node("Sigmoid", "model.22.sigmoid", scores)
    return g.node("Concat", "model.22.output", boxes, scores, out="output", axis=1)


def _distances(g: GraphBuilder, sides: str, batch: int) -> str:
    """The mean of each side's distribution, (batch, 4, cells), in cells."""
    cells = g.shape(sides)[2]
    y = g.node(
        "Reshape", "model.22.dfl.reshape", sides, g.ints("dfl.shape", (batch, 4, BINS, cells))
    )
    y = g.node("Transpose", "model.22.dfl.transpose", y, perm=[0, 2, 1, 3])
    y = g.node("Softmax", "model.22.dfl.softmax", y, axis=1)
    w = g.constant("model.22.dfl.conv.weight", np.arange(BINS).reshape(1, BINS, 1, 1))
    y = g.node("Conv", "model.22.dfl.conv", y, w, kernel_shape=[1, 1])
    return g.node("Reshape", "model.22.dfl.flatten", y, g.ints("dfl.flat", (batch, 4, cells)))


def _boxes(g: GraphBuilder, distances: str, sizes: Sequence[tuple[int, ...]]) -> str:
    """Left, top, right and bottom distances to the cells' middles → boxes in pixels."""
    anchors, pixels = _cells(g, sizes)
    before, after = g.split("model.22.sides", distances, [2, 2], axis=1)
    low = g.node("Sub", "model.22.low", anchors, before)
    high = g.node("Add", "model.22.high", anchors, after)
    total = g.node("Add", "model.22.sum", low, high)
    middle = g.node("Div", "model.22.middle", total, g.constant("model.22.two", 2.0))
    size = g.node("Sub", "model.22.size", high, low)
    boxes = g.node("Concat", "model.22.boxes", middle, size, axis=1)
    return g.node("Mul", "model.22.pixels", boxes, pixels)


def _cells(g: GraphBuilder, sizes: Sequence[tuple[int, ...]]) -> tuple[str, str]:
    """The middles of all cells (1, 2, cells), in cells, and their strides (1, 1, cells)."""
    corners, strides = [], []
    for (rows, columns), stride in zip(sizes, STRIDES, strict=True):
        y, x = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
        corners.append(np.stack([x.ravel(), y.ravel()]))
        strides.append(np.full(rows * columns, stride))
    corner = g.ints("model.22.corners", np.concatenate(corners, 1)[None])
    stride_of = g.ints("model.22.strides", np.concatenate(strides)[None, None])
    corner = g.node("Cast", "model.22.corners.cast", corner, to=g.dtype.value)
    half = g.constant("model.22.half", 0.5)
    return (
        g.node("Add", "model.22.anchors", corner, half),
        g.node("Cast", "model.22.strides.cast", stride_of, to=g.dtype.value),
    )
