"""MobileNetV2 (Sandler et al., 2018) at width 1.0. Names are torchvision's."""

from __future__ import annotations

from npusim.models.builder import GraphBuilder
from npusim.models.layers import (
    IMAGE,
    RELU,
    RESIDUAL_GAMMA,
    batch_norm,
    classify,
    conv,
    image_input,
)
from npusim.models.registry import model

#: Of each stage: expansion, channels, blocks, stride of the first block.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@model("mobilenetv2", "MobileNetV2 1.0 image classifier (3.5 M parameters)", IMAGE)
def mobilenetv2(
    g: GraphBuilder, *, batch: int = 1, height: int = 224, width: int = 224, classes: int = 1000
) -> None:
    """Seventeen inverted residuals between two convolutions."""
    x = image_input(g, "MobileNetV2", 32, (batch, 3, height, width))
    g.constant("relu6.min", 0.0)
    g.constant("relu6.max", 6.0)
    x = _conv_bn_relu(g, x, "features.0", 32, kernel=3, stride=2, gain=1.0)
    index = 1
    for expansion, channels, blocks, stride in STAGES:
        for i in range(blocks):
            name = f"features.{index}.conv"
            x = _inverted_residual(g, x, name, expansion, channels, 1 if i else stride)
            index += 1
    x = _conv_bn_relu(g, x, f"features.{index}", 1280, kernel=1, gain=1.0)
    classify(g, x, "classifier.1", classes, gain=2.0)


def _inverted_residual(
    g: GraphBuilder, x: str, name: str, expansion: int, channels: int, stride: int
) -> str:
    """1x1 expansion, 3x3 depthwise, 1x1 projection without Relu; a shortcut where shapes allow."""
    y, width, at = x, g.shape(x)[1] * expansion, 0
    if expansion > 1:
        y, at = _conv_bn_relu(g, x, f"{name}.0", width, kernel=1, gain=1.0), 1
    y = _conv_bn_relu(g, y, f"{name}.{at}", width, kernel=3, stride=stride, group=width)
    shortcut = stride == 1 and g.shape(x)[1] == channels
    y = conv(g, y, f"{name}.{at + 1}", channels, 1)
    y = batch_norm(g, y, f"{name}.{at + 2}", RESIDUAL_GAMMA if shortcut else 1.0)
    return g.node("Add", f"{name}.add", x, y) if shortcut else y


def _conv_bn_relu(
    g: GraphBuilder,
    x: str,
    name: str,
    channels: int,
    *,
    kernel: int,
    stride: int = 1,
    group: int = 1,
    gain: float = RELU,
) -> str:
    """Convolution, BatchNormalization, and Relu6 as exporters write it: a Clip to 0 … 6."""
    y = conv(g, x, f"{name}.0", channels, kernel, stride=stride, group=group, gain=gain)
    y = batch_norm(g, y, f"{name}.1")
    return g.node("Clip", f"{name}.2", y, "relu6.min", "relu6.max")
