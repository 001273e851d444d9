"""VGG-16 (Simonyan and Zisserman, 2014), without BatchNormalization. Names are torchvision's."""

from __future__ import annotations

from math import sqrt

from npusim.models.builder import GraphBuilder
from npusim.models.layers import IMAGE, RELU, conv, dense, image_input
from npusim.models.registry import model

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  #: channels, convolutions


@model("vgg16", "VGG-16 image classifier (138.4 M parameters)", IMAGE)
def vgg16(
    g: GraphBuilder, *, batch: int = 1, height: int = 224, width: int = 224, classes: int = 1000
) -> None:
    """Thirteen 3x3 convolutions in five stages, each halved by a pool, and three linear layers.

    The first linear layer has a weight for every pixel that the stages leave.
    """
    x = image_input(g, "VGG-16", 32, (batch, 3, height, width))
    index, gain = 0, 1.0
    for channels, depth in STAGES:
        for _ in range(depth):
            y = conv(g, x, f"features.{index}", channels, 3, gain=gain, bias=True)
            x = g.node("Relu", f"features.{index + 1}", y)
            index, gain = index + 2, RELU
        x = g.node("MaxPool", f"features.{index}", x, kernel_shape=[2, 2], strides=[2, 2])
        index += 1
    x = g.node("Flatten", "flatten", x, axis=1)
    x = g.node("Relu", "classifier.1", dense(g, x, "classifier.0", 4096, sqrt(RELU)))
    x = g.node("Relu", "classifier.4", dense(g, x, "classifier.3", 4096, sqrt(RELU)))
    g.output(dense(g, x, "classifier.6", classes, sqrt(RELU), out="output"))
