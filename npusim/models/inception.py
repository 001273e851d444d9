"""Inception v3 (Szegedy et al., 2015) without its auxiliary classifier. Names are torchvision's."""

from __future__ import annotations

from npusim.models.builder import GraphBuilder
from npusim.models.layers import IMAGE, batch_norm, classify, conv, image_input
from npusim.models.registry import model

EPSILON = 1e-3
Kernel = int | tuple[int, int]


@model("inceptionv3", "Inception v3 image classifier (23.8 M parameters)", IMAGE)
def inceptionv3(
    g: GraphBuilder, *, batch: int = 1, height: int = 299, width: int = 299, classes: int = 1000
) -> None:
    """Five convolutions, then eleven blocks of parallel branches."""
    x = image_input(g, "Inception v3", 75, (batch, 3, height, width))
    x = _conv(g, x, "Conv2d_1a_3x3", 32, 3, stride=2, pad=0)
    x = _conv(g, x, "Conv2d_2a_3x3", 32, 3, pad=0)
    x = _conv(g, x, "Conv2d_2b_3x3", 64, 3)
    x = _max_pool(g, x, "maxpool1")
    x = _conv(g, x, "Conv2d_3b_1x1", 80, 1)
    x = _conv(g, x, "Conv2d_4a_3x3", 192, 3, pad=0)
    x = _max_pool(g, x, "maxpool2")
    for letter, pooled in zip("bcd", (32, 64, 64), strict=True):
        x = _block_a(g, x, f"Mixed_5{letter}", pooled)
    x = _block_b(g, x, "Mixed_6a")
    for letter, narrow in zip("bcde", (128, 160, 160, 192), strict=True):
        x = _block_c(g, x, f"Mixed_6{letter}", narrow)
    x = _block_d(g, x, "Mixed_7a")
    for letter in "bc":
        x = _block_e(g, x, f"Mixed_7{letter}")
    classify(g, x, "fc", classes)


def _conv(
    g: GraphBuilder,
    x: str,
    name: str,
    channels: int,
    kernel: Kernel,
    *,
    stride: int = 1,
    pad: int | None = None,
) -> str:
    """Convolution, BatchNormalization, Relu."""
    y = conv(g, x, f"{name}.conv", channels, kernel, stride=stride, pad=pad)
    return g.node("Relu", f"{name}.relu", batch_norm(g, y, f"{name}.bn", epsilon=EPSILON))


def _chain(g: GraphBuilder, x: str, name: str, *steps: tuple[str, int, Kernel]) -> str:
    """Convolutions one after the other, at stride 1, that keep the size."""
    for suffix, channels, kernel in steps:
        x = _conv(g, x, f"{name}.{suffix}", channels, kernel)
    return x


def _max_pool(g: GraphBuilder, x: str, name: str) -> str:
    return g.node("MaxPool", name, x, kernel_shape=[3, 3], strides=[2, 2])


def _pooled(g: GraphBuilder, x: str, name: str, channels: int) -> str:
    """The branch of an average pool (padding counts) and a 1x1 convolution."""
    y = g.node(
        "AveragePool",
        f"{name}.branch_pool.pool",
        x,
        kernel_shape=[3, 3],
        pads=[1] * 4,
        strides=[1, 1],
        count_include_pad=1,
    )
    return _conv(g, y, f"{name}.branch_pool", channels, 1)


def _join(g: GraphBuilder, name: str, *branches: str) -> str:
    return g.node("Concat", f"{name}.concat", *branches, axis=1)


def _block_a(g: GraphBuilder, x: str, name: str, pooled: int) -> str:
    """1x1, 5x5, twice 3x3, and the pool."""
    return _join(
        g,
        name,
        _chain(g, x, name, ("branch1x1", 64, 1)),
        _chain(g, x, name, ("branch5x5_1", 48, 1), ("branch5x5_2", 64, 5)),
        _chain(
            g,
            x,
            name,
            ("branch3x3dbl_1", 64, 1),
            ("branch3x3dbl_2", 96, 3),
            ("branch3x3dbl_3", 96, 3),
        ),
        _pooled(g, x, name, pooled),
    )


def _block_b(g: GraphBuilder, x: str, name: str) -> str:
    """Halves the size: 3x3, twice 3x3, and a maximum pool."""
    y = _chain(g, x, name, ("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3))
    return _join(
        g,
        name,
        _conv(g, x, f"{name}.branch3x3", 384, 3, stride=2, pad=0),
        _conv(g, y, f"{name}.branch3x3dbl_3", 96, 3, stride=2, pad=0),
        _max_pool(g, x, f"{name}.branch_pool"),
    )


def _block_c(g: GraphBuilder, x: str, name: str, narrow: int) -> str:
    """1x1, 7x7 as 1x7 and 7x1, that twice, and the pool."""
    seven = (
        ("branch7x7_1", narrow, 1),
        ("branch7x7_2", narrow, (1, 7)),
        ("branch7x7_3", 192, (7, 1)),
    )
    double = (
        ("branch7x7dbl_1", narrow, 1),
        ("branch7x7dbl_2", narrow, (7, 1)),
        ("branch7x7dbl_3", narrow, (1, 7)),
        ("branch7x7dbl_4", narrow, (7, 1)),
        ("branch7x7dbl_5", 192, (1, 7)),
    )
    return _join(
        g,
        name,
        _chain(g, x, name, ("branch1x1", 192, 1)),
        _chain(g, x, name, *seven),
        _chain(g, x, name, *double),
        _pooled(g, x, name, 192),
    )


def _block_d(g: GraphBuilder, x: str, name: str) -> str:
    """Halves the size: 3x3, 7x7 and 3x3, and a maximum pool."""
    y = _chain(g, x, name, ("branch3x3_1", 192, 1))
    z = _chain(
        g,
        x,
        name,
        ("branch7x7x3_1", 192, 1),
        ("branch7x7x3_2", 192, (1, 7)),
        ("branch7x7x3_3", 192, (7, 1)),
    )
    return _join(
        g,
        name,
        _conv(g, y, f"{name}.branch3x3_2", 320, 3, stride=2, pad=0),
        _conv(g, z, f"{name}.branch7x7x3_4", 192, 3, stride=2, pad=0),
        _max_pool(g, x, f"{name}.branch_pool"),
    )


def _block_e(g: GraphBuilder, x: str, name: str) -> str:
    """1x1, 3x3 in two directions, that behind another 3x3, and the pool."""
    y = _chain(g, x, name, ("branch3x3_1", 384, 1))
    z = _chain(g, x, name, ("branch3x3dbl_1", 448, 1), ("branch3x3dbl_2", 384, 3))
    return _join(
        g,
        name,
        _chain(g, x, name, ("branch1x1", 320, 1)),
        _chain(g, y, name, ("branch3x3_2a", 384, (1, 3))),
        _chain(g, y, name, ("branch3x3_2b", 384, (3, 1))),
        _chain(g, z, name, ("branch3x3dbl_3a", 384, (1, 3))),
        _chain(g, z, name, ("branch3x3dbl_3b", 384, (3, 1))),
        _pooled(g, x, name, 192),
    )
