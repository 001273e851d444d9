"""Layers that several families are made of; each adds nodes to a `GraphBuilder`.

Scales of the random weights keep activations of order 1 through any depth, so that a comparison of
outputs compares something: convolutions and linear layers preserve variance (`gain` 2 behind a
Relu, which halves it), and residual branches add little to their stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

from npusim.errors import ModelError
from npusim.ir import DType
from npusim.models.builder import GraphBuilder

#: Gains over 1/sqrt(fan in). Sharp attention and quiet branches keep the tokens of a deep random
#: transformer apart: without them all tokens leave BERT-Large nearly equal.
QUERY_GAIN = 2.0
BRANCH_GAIN = 0.3

#: Mean scale of the last BatchNormalization of a branch: the stream grows little with depth.
RESIDUAL_GAMMA = 0.3

RELU = 2.0  #: variance gain that makes up for a Relu in front

IMAGE = {"input": ("batch", 3, "height", "width")}


def image_input(g: GraphBuilder, model: str, least: int, shape: Sequence[int]) -> str:
    """The input of an image model, (batch, 3, height, width).

    Raises:
        ModelError: an image smaller than `least`.
    """
    if min(shape[2:]) < least:
        raise ModelError(
            f"image size {shape[2]}x{shape[3]} of {model}",
            f"{least} and more: its strides and windows leave nothing of a smaller one",
            "use a larger image",
        )
    return g.input("input", shape)


def classify(g: GraphBuilder, x: str, name: str, classes: int, gain: float = 1.0) -> None:
    """Mean over the pixels, then a linear layer: the graph's output."""
    x = g.node("Flatten", "flatten", g.node("GlobalAveragePool", "avgpool", x), axis=1)
    g.output(dense(g, x, name, classes, gain, out="output"))


def dense(g: GraphBuilder, x: str, name: str, width: int, gain: float = 1.0, out: str = "") -> str:
    """x (rows, columns) · Wᵀ + b as a Gemm, W stored as (out, in)."""
    columns = g.shape(x)[1]
    w = g.weight(f"{name}.weight", (width, columns), std=gain / sqrt(columns))
    b = g.weight(f"{name}.bias", (width,), std=0.1)
    return g.node("Gemm", name, x, w, b, out=out, transB=1)


def conv(
    g: GraphBuilder,
    x: str,
    name: str,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    pad: int | tuple[int, int] | None = None,
    group: int = 1,
    gain: float = RELU,
    bias: bool = False,
) -> str:
    """A convolution of normal weights.

    Args:
        pad: rows above and below, columns left and right; None keeps the size at stride 1.
        gain: of the variance.
    """
    size = (kernel, kernel) if isinstance(kernel, int) else kernel
    if pad is None:
        pad = (size[0] // 2, size[1] // 2)
    edges = (pad, pad) if isinstance(pad, int) else pad
    shape = (channels, g.shape(x)[1] // group, *size)
    inputs = [x, g.weight(f"{name}.weight", shape, std=sqrt(gain / prod(shape[1:])))]
    if bias:
        inputs.append(g.weight(f"{name}.bias", (channels,), std=0.1))
    window = {"kernel_shape": [*size], "strides": [stride, stride], "pads": [*edges, *edges]}
    return g.add("Conv", name, inputs, {**window, "group": group} if group > 1 else window)


def batch_norm(
    g: GraphBuilder,
    x: str,
    name: str,
    gamma: float = 1.0,
    epsilon: float = 1e-5,
    shift: float = 0.1,
) -> str:
    """BatchNormalization for an input of order 1, with a scale near gamma, and random shifts."""
    channels = g.shape(x)[1]
    parameters = (
        g.weight(f"{name}.weight", (channels,), std=0.1 * gamma, mean=gamma),
        g.weight(f"{name}.bias", (channels,), std=shift),
        g.weight(f"{name}.running_mean", (channels,), std=0.1),
        g.weight(f"{name}.running_var", (channels,), std=0.1, mean=1.0),
    )
    return g.node("BatchNormalization", name, x, *parameters, epsilon=epsilon)


def linear(
    g: GraphBuilder, x: str, name: str, width: int, gain: float = 1.0, bias: bool = True
) -> str:
    """x·W [+ b], W stored as (in, out), as exporters leave it."""
    fan_in = g.shape(x)[-1]
    w = g.weight(f"{name}.weight", (fan_in, width), std=gain / sqrt(fan_in))
    y = g.node("MatMul", f"{name}.matmul", x, w)
    if not bias:
        return y
    return g.node("Add", f"{name}.add", y, g.weight(f"{name}.bias", (width,), std=0.02))


def layer_norm(g: GraphBuilder, x: str, name: str, epsilon: float, out: str = "") -> str:
    """LayerNormalization over the last axis."""
    width = g.shape(x)[-1:]
    gamma = g.weight(f"{name}.weight", width, std=0.1, mean=1.0)
    beta = g.weight(f"{name}.bias", width, std=0.02)
    return g.node("LayerNormalization", name, x, gamma, beta, out=out, axis=-1, epsilon=epsilon)


def split_heads(g: GraphBuilder, x: str, name: str, shape: str, perm: Sequence[int]) -> str:
    """x (batch, seq, hidden) as the constant `shape` (batch, seq, heads, size), axes permuted."""
    y = g.node("Reshape", f"{name}.reshape", x, shape)
    return g.node("Transpose", f"{name}.transpose", y, perm=list(perm))


def attend(
    g: GraphBuilder, q: str, k: str, v: str, name: str, scale: str, mask: str, merged: str
) -> str:
    """softmax(Q·K · scale + mask)·V, heads side by side in the result.

    Args:
        q, k, v: (batch, heads, seq, size), but k (batch, heads, size, seq).
        scale, mask, merged: constants, and what is added to the scores; "" for no mask.
    """
    scores = g.node("MatMul", f"{name}.scores", q, k)
    scores = g.node("Mul", f"{name}.scale", scores, scale)
    if mask:
        scores = g.node("Add", f"{name}.mask", scores, mask)
    weights = g.node("Softmax", f"{name}.softmax", scores, axis=-1)
    y = g.node("MatMul", f"{name}.context", weights, v)
    y = g.node("Transpose", f"{name}.context.transpose", y, perm=[0, 2, 1, 3])
    return g.node("Reshape", f"{name}.context.reshape", y, merged)


def causal_mask(g: GraphBuilder, rows: int, past: int = 0) -> str:
    """0 where a token may look, -10000 where it is later, (1, 1, rows, past + rows)."""
    later = [[[[column > row + past for column in range(past + rows)] for row in range(rows)]]]
    later_name = g.constant("causal.later", later, DType.BOOL)
    least, zero = g.constant("causal.least", -10000.0), g.constant("causal.zero", 0.0)
    return g.node("Where", "causal.mask", later_name, least, zero)
