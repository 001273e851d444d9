"""Older ONNX forms rewritten to the newest: a rule names operators and the last opset it serves.

A rule sees one node, as written for the model's opset, and returns the nodes that replace it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from npusim.errors import UnsupportedError
from npusim.ir import Node, TensorType

OLDEST = 7
NEWEST = 28


class Builder(Protocol):
    """What a rule may ask of the importer."""

    def constant(self, hint: str, value: np.ndarray) -> str:
        """Add a constant; returns its name."""

    def fresh(self, hint: str) -> str:
        """An unused tensor name."""

    def type(self, name: str) -> TensorType:
        """Type of a tensor that exists already."""

    def known(self, name: str) -> np.ndarray | None:
        """Value of a tensor where it is known before the run."""


Rule = Callable[[Node, Builder, int], list[Node]]
_RULES: dict[str, list[tuple[int, Rule]]] = {}


def rule(*op_types: str, until: int) -> Callable[[Rule], Rule]:
    """Register a rewrite of `op_types` in models of opset `until` and older."""

    def register(fn: Rule) -> Rule:
        for op_type in op_types:
            _RULES.setdefault(op_type, []).append((until, fn))
        return fn

    return register


def has_rule(op_type: str) -> bool:
    """Whether older forms of the operator are rewritten."""
    return op_type in _RULES


def rewrites_all(op_type: str) -> bool:
    """Whether the operator's newest form is rewritten too."""
    return any(until == NEWEST for until, _ in _RULES.get(op_type, ()))


def modernise(node: Node, builder: Builder, opset: int) -> list[Node]:
    """The node in the newest form (itself, when nothing has changed since `opset`)."""
    for until, fn in _RULES.get(node.op_type, ()):
        if opset <= until:
            return fn(node, builder, opset)
    return [node]


def _without(node: Node, *keys: str) -> dict[str, Any]:
    return {k: v for k, v in node.attrs.items() if k not in keys}


def _int64(builder: Builder, node: Node, hint: str, values: Any) -> str:
    return builder.constant(f"{node.name}/{hint}", np.array(values, np.int64))


@rule("Squeeze", "Unsqueeze", "ReduceSum", until=12)
@rule(
    *(f"Reduce{r}" for r in ("Mean", "Max", "Min", "Prod", "L1", "L2")),
    *(f"Reduce{r}" for r in ("SumSquare", "LogSum", "LogSumExp")),
    until=17,
)
def _axes_to_input(node: Node, builder: Builder, opset: int) -> list[Node]:
    axes = node.attrs.get("axes")
    if axes is None:
        return [node]
    axes_input = _int64(builder, node, "axes", axes)
    return [node.with_(inputs=(node.inputs[0], axes_input), attrs=_without(node, "axes"))]


@rule("Clip", until=10)
def _clip_bounds(node: Node, builder: Builder, opset: int) -> list[Node]:
    dtype = builder.type(node.inputs[0]).dtype.np
    bounds = [
        builder.constant(f"{node.name}/{key}", np.array(node.attrs[key], np.float32).astype(dtype))
        if key in node.attrs
        else ""
        for key in ("min", "max")
    ]
    return [node.with_(inputs=(node.inputs[0], *bounds), attrs={})]


@rule("Dropout", until=11)
def _dropout_ratio(node: Node, builder: Builder, opset: int) -> list[Node]:
    return [node.with_(attrs=_without(node, "ratio"))]  # no effect in inference


@rule("Slice", until=9)
def _slice_inputs(node: Node, builder: Builder, opset: int) -> list[Node]:
    keys = [k for k in ("starts", "ends", "axes") if k in node.attrs]
    operands = (_int64(builder, node, k, node.attrs[k]) for k in keys)
    return [node.with_(inputs=(node.inputs[0], *operands), attrs={})]


@rule("Pad", until=10)
def _pad_inputs(node: Node, builder: Builder, opset: int) -> list[Node]:
    dtype = builder.type(node.inputs[0]).dtype.np
    pads = _int64(builder, node, "pads", node.attrs["pads"])
    fill = np.array(node.attrs.get("value", 0.0), np.float32).astype(dtype)
    value = builder.constant(f"{node.name}/value", fill)
    kept = _without(node, "pads", "value")
    return [node.with_(inputs=(node.inputs[0], pads, value), attrs=kept)]


@rule("Split", until=12)
def _split_sizes(node: Node, builder: Builder, opset: int) -> list[Node]:
    if "split" not in node.attrs:
        return [node]
    sizes = _int64(builder, node, "split", node.attrs["split"])
    return [node.with_(inputs=(node.inputs[0], sizes), attrs=_without(node, "split"))]


@rule("Upsample", until=9)
def _upsample(node: Node, builder: Builder, opset: int) -> list[Node]:
    if "scales" in node.attrs:
        values = np.array(node.attrs["scales"], np.float32)
        scales = builder.constant(f"{node.name}/scales", values)
    else:
        scales = node.inputs[1]
    mode = node.attrs.get("mode", "nearest")
    return [_asymmetric_resize(node, scales, "linear" if mode == "bilinear" else mode)]


@rule("Resize", until=10)
def _resize_scales(node: Node, builder: Builder, opset: int) -> list[Node]:
    return [_asymmetric_resize(node, node.inputs[1], node.attrs.get("mode", "nearest"))]


def _asymmetric_resize(node: Node, scales: str, mode: str) -> Node:
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return node.with_(op_type="Resize", inputs=(node.inputs[0], "", scales), attrs=attrs)


@rule("Softmax", "LogSoftmax", "Hardmax", until=12)
def _softmax_of_matrix(node: Node, builder: Builder, opset: int) -> list[Node]:
    """Before opset 13 the input is a matrix: dimensions before `axis`, and the rest."""
    shape = builder.type(node.inputs[0]).shape
    axis = node.attrs.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    if axis == len(shape) - 1:
        return [node.with_(attrs={"axis": -1})]
    flat, result = builder.fresh(f"{node.name}/flat"), builder.fresh(f"{node.name}/rows")
    back = _int64(builder, node, "shape", shape)
    return [
        Node(f"{node.name}/flatten", "Flatten", node.inputs, (flat,), {"axis": axis}),
        node.with_(inputs=(flat,), outputs=(result,), attrs={"axis": -1}),
        Node(f"{node.name}/reshape", "Reshape", (result, back), node.outputs),
    ]


@rule("BatchNormalization", until=8)
def _batch_norm_spatial(node: Node, builder: Builder, opset: int) -> list[Node]:
    if not node.attrs.get("spatial", 1):
        raise UnsupportedError(
            f"BatchNormalization with spatial=0 at node {node.name!r}",
            "spatial=1",
            "export the model with opset 9 or newer",
        )
    return [node.with_(attrs=_without(node, "spatial"))]


@rule("PRelu", until=6)
def _prelu_per_channel(node: Node, builder: Builder, opset: int) -> list[Node]:
    """Before opset 7 a slope of several elements has one per channel: give it its dimensions."""
    x, slope = (builder.type(i).shape for i in node.inputs)
    if len(slope) != 1 or slope == (1,) or len(x) <= 2:
        return [node]
    shape = _int64(builder, node, "shape", (slope[0], *(1,) * (len(x) - 2)))
    column = builder.fresh(f"{node.name}/slope")
    return [
        Node(f"{node.name}/reshape", "Reshape", (node.inputs[1], shape), (column,)),
        node.with_(inputs=(node.inputs[0], column)),
    ]


@rule("Scatter", until=10)
def _scatter_elements(node: Node, builder: Builder, opset: int) -> list[Node]:
    return [node.with_(op_type="ScatterElements")]


@rule("GroupNormalization", until=20)
def _group_norm_per_channel(node: Node, builder: Builder, opset: int) -> list[Node]:
    """Before opset 21 scale and bias have one entry per group: repeat them per channel."""
    groups = node.attrs["num_groups"]
    channels = builder.type(node.inputs[0]).shape[1]
    column = _int64(builder, node, "column", (groups, 1))
    matrix = _int64(builder, node, "matrix", (groups, channels // groups))
    vector = _int64(builder, node, "vector", (channels,))
    nodes, operands = [], []
    for source, hint in zip(node.inputs[1:], ("scale", "bias"), strict=True):
        prefix = f"{node.name}/{hint}"
        a, b, c = (builder.fresh(f"{prefix}_{step}") for step in ("column", "matrix", "vector"))
        nodes += [
            Node(f"{prefix}/column", "Reshape", (source, column), (a,)),
            Node(f"{prefix}/expand", "Expand", (a, matrix), (b,)),
            Node(f"{prefix}/vector", "Reshape", (b, vector), (c,)),
        ]
        operands.append(c)
    return [*nodes, node.with_(inputs=(node.inputs[0], *operands))]


@rule("DFT", until=19)
def _dft_axis(node: Node, builder: Builder, opset: int) -> list[Node]:
    axis = _int64(builder, node, "axis", node.attrs.get("axis", 1))
    inputs = (*node.inputs, "")[:2]
    return [node.with_(inputs=(*inputs, axis), attrs=_without(node, "axis"))]


@rule("GridSample", until=19)
def _grid_sample_modes(node: Node, builder: Builder, opset: int) -> list[Node]:
    mode = node.attrs.get("mode", "bilinear").removeprefix("bi")
    return [node.with_(attrs={**node.attrs, "mode": mode})]


@rule("RoiAlign", until=15)
def _roi_align_corners(node: Node, builder: Builder, opset: int) -> list[Node]:
    mode = {"coordinate_transformation_mode": "output_half_pixel"}
    return [node.with_(attrs={**mode, **node.attrs})]


@rule("TopK", until=9)
def _top_k_input(node: Node, builder: Builder, opset: int) -> list[Node]:
    k = _int64(builder, node, "k", [node.attrs["k"]])
    return [node.with_(inputs=(node.inputs[0], k), attrs=_without(node, "k"))]


@rule("DeformConv", until=NEWEST)
def _deform_conv(node: Node, builder: Builder, opset: int) -> list[Node]:
    """As CANN has it: the shifted taps side by side, then a convolution over them."""
    x, weight, offset, bias, mask = (*node.inputs, "", "")[:5]
    kernel = tuple(builder.type(weight).shape[2:])
    taps = builder.fresh(f"{node.name}/taps")
    attrs = {**_without(node, "group"), "kernel_shape": kernel}
    conv = {"kernel_shape": kernel, "strides": kernel, "group": node.attrs.get("group", 1)}
    sampled = (x, offset, mask) if mask else (x, offset)
    operands = (taps, weight, bias) if bias else (taps, weight)
    return [
        Node(f"{node.name}/offsets", "DeformableOffsets", sampled, (taps,), attrs),
        Node(node.name, "Conv", operands, node.outputs, conv),
    ]
