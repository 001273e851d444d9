"""U-Net (Ronneberger et al., 2015) with padding and BatchNormalization, in a small size.

Names are those of the widely used milesial/Pytorch-UNet; base=64 gives its 31.0 M parameters.
"""

from __future__ import annotations

from math import sqrt

from npusim.errors import ModelError
from npusim.models.builder import GraphBuilder
from npusim.models.layers import IMAGE, RELU, batch_norm, conv
from npusim.models.registry import model

DEPTH = 4  #: times that the image is halved


@model("unet", "U-Net segmentation, 16 to 256 channels (1.9 M parameters)", IMAGE)
def unet(
    g: GraphBuilder,
    *,
    batch: int = 1,
    height: int = 256,
    width: int = 256,
    classes: int = 2,
    base: int = 16,
) -> None:
    """Down by pools, up by transposed convolutions, a shortcut at every size.

    `base` is the number of channels at full size; it doubles at every halving.
    """
    if height % (1 << DEPTH) or width % (1 << DEPTH):
        raise ModelError(
            f"image size {height}x{width} of a U-Net",
            f"multiples of {1 << DEPTH}: it is halved {DEPTH} times",
            "pad or crop the image",
        )
    x = g.input("input", (batch, 3, height, width))
    x = _double_conv(g, x, "inc", base)
    skips = []
    for i in range(1, DEPTH + 1):
        skips.append(x)
        x = g.node("MaxPool", f"down{i}.pool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = _double_conv(g, x, f"down{i}", base << i)
    for i, skip in enumerate(reversed(skips), 1):
        channels = g.shape(skip)[1]
        x = _up(g, x, f"up{i}.up", channels)
        x = g.node("Concat", f"up{i}.concat", skip, x, axis=1)
        x = _double_conv(g, x, f"up{i}", channels)
    y = conv(g, x, "outc", classes, 1, bias=True)
    g.output(g.node("Sigmoid", "sigmoid", y, out="output"))


def _double_conv(g: GraphBuilder, x: str, name: str, channels: int) -> str:
    """Twice: 3x3 convolution, BatchNormalization, Relu."""
    for at in (0, 3):
        y = conv(g, x, f"{name}.double_conv.{at}", channels, 3)
        y = batch_norm(g, y, f"{name}.double_conv.{at + 1}")
        x = g.node("Relu", f"{name}.double_conv.{at + 2}", y)
    return x


def _up(g: GraphBuilder, x: str, name: str, channels: int) -> str:
    """Twice the size, half the channels."""
    fan_in = g.shape(x)[1]
    w = g.weight(f"{name}.weight", (fan_in, channels, 2, 2), std=sqrt(RELU / fan_in))
    b = g.weight(f"{name}.bias", (channels,), std=0.1)
    size = [2, 2]
    return g.node("ConvTranspose", name, x, w, b, kernel_shape=size, strides=size)
