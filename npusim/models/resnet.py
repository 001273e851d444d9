"""ResNet for images (He et al., 2015), in the v1.5 form that torchvision and MLPerf use.

v1.5: the stride of a bottleneck sits in its 3x3 convolution. Names are torchvision's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npusim.models.builder import GraphBuilder
from npusim.models.layers import (
    IMAGE,
    RESIDUAL_GAMMA,
    batch_norm,
    classify,
    conv,
    image_input,
)
from npusim.models.registry import model

Block = Callable[[GraphBuilder, str, str, int, int], str]


@model("resnet18", "ResNet-18 image classifier (11.7 M parameters)", IMAGE)
def resnet18(
    g: GraphBuilder, *, batch: int = 1, height: int = 224, width: int = 224, classes: int = 1000
) -> None:
    """Four stages of two basic blocks."""
    resnet(g, (batch, 3, height, width), classes, (2, 2, 2, 2), basic_block)


@model("resnet34", "ResNet-34 image classifier (21.8 M parameters)", IMAGE)
def resnet34(
    g: GraphBuilder, *, batch: int = 1, height: int = 224, width: int = 224, classes: int = 1000
) -> None:
    """Stages of 3, 4, 6 and 3 basic blocks."""
    resnet(g, (batch, 3, height, width), classes, (3, 4, 6, 3), basic_block)


@model("resnet50", "ResNet-50 v1.5 image classifier (25.6 M parameters)", IMAGE)
def resnet50(
    g: GraphBuilder, *, batch: int = 1, height: int = 224, width: int = 224, classes: int = 1000
) -> None:
    """Stages of 3, 4, 6 and 3 bottlenecks."""
    resnet(g, (batch, 3, height, width), classes, (3, 4, 6, 3), bottleneck)


@model("resnet101", "ResNet-101 v1.5 image classifier (44.5 M parameters)", IMAGE)
def resnet101(
    g: GraphBuilder, *, batch: int = 1, height: int = 224, width: int = 224, classes: int = 1000
) -> None:
    """Stages of 3, 4, 23 and 3 bottlenecks."""
    resnet(g, (batch, 3, height, width), classes, (3, 4, 23, 3), bottleneck)


@model("resnet152", "ResNet-152 v1.5 image classifier (60.2 M parameters)", IMAGE)
def resnet152(
    g: GraphBuilder, *, batch: int = 1, height: int = 224, width: int = 224, classes: int = 1000
) -> None:
    """Stages of 3, 8, 36 and 3 bottlenecks."""
    resnet(g, (batch, 3, height, width), classes, (3, 8, 36, 3), bottleneck)


def resnet(
    g: GraphBuilder, image: Sequence[int], classes: int, depths: Sequence[int], block: Block
) -> None:
    """A ResNet of four stages of `depths` blocks.

    Raises:
        ModelError: an image of less than 32 pixels a side.
    """
    x = image_input(g, "a ResNet", 32, image)
    x = g.node("Relu", "relu", conv_bn(g, x, "conv1", "bn1", 64, kernel=7, stride=2))
    x = g.node("MaxPool", "maxpool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, depth in enumerate(depths):
        for i in range(depth):
            stride = 2 if stage and not i else 1
            x = block(g, x, f"layer{stage + 1}.{i}", 64 << stage, stride)
    classify(g, x, "fc", classes)


def basic_block(g: GraphBuilder, x: str, name: str, width: int, stride: int) -> str:
    """Two 3x3 convolutions around a shortcut."""
    y = conv_bn(g, x, f"{name}.conv1", f"{name}.bn1", width, kernel=3, stride=stride)
    y = g.node("Relu", f"{name}.relu1", y)
    y = conv_bn(g, y, f"{name}.conv2", f"{name}.bn2", width, kernel=3, gamma=RESIDUAL_GAMMA)
    return _join(g, x, y, name, stride)


def bottleneck(g: GraphBuilder, x: str, name: str, width: int, stride: int) -> str:
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the last widens four times."""
    y = conv_bn(g, x, f"{name}.conv1", f"{name}.bn1", width, kernel=1)
    y = g.node("Relu", f"{name}.relu1", y)
    y = conv_bn(g, y, f"{name}.conv2", f"{name}.bn2", width, kernel=3, stride=stride)
    y = g.node("Relu", f"{name}.relu2", y)
    y = conv_bn(g, y, f"{name}.conv3", f"{name}.bn3", 4 * width, kernel=1, gamma=RESIDUAL_GAMMA)
    return _join(g, x, y, name, stride)


def _join(g: GraphBuilder, x: str, branch: str, name: str, stride: int) -> str:
    """relu(branch + shortcut), where the shortcut is projected if the shape changes."""
    if g.shape(x) != g.shape(branch):
        down, channels = f"{name}.downsample", g.shape(branch)[1]
        x = conv_bn(g, x, f"{down}.0", f"{down}.1", channels, kernel=1, stride=stride)
    return g.node("Relu", f"{name}.relu", g.node("Add", f"{name}.add", branch, x))


def conv_bn(
    g: GraphBuilder,
    x: str,
    name: str,
    bn: str,
    channels: int,
    *,
    kernel: int,
    stride: int = 1,
    gamma: float = 1.0,
) -> str:
    """A convolution without bias and its BatchNormalization."""
    return batch_norm(g, conv(g, x, name, channels, kernel, stride=stride), bn, gamma)
