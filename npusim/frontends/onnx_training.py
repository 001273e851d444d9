"""Training in terms of other operators: optimisers, normalisation and dropout.

Each node becomes the vector operations that it stands for; each of them is a kernel.
"""

from __future__ import annotations

from typing import Any

from npusim.errors import UnsupportedError
from npusim.frontends.onnx_dialect import Dialect, Rewrite
from npusim.frontends.onnx_formula import Formula
from npusim.frontends.onnx_opset import NEWEST, Builder, rule
from npusim.ir import Node


def _optimizer(step: Any, defaults: dict[str, Any], states: int) -> Rewrite:
    """Inputs R and T, then all tensors, all gradients and `states` of each; outputs as these are.

    `step(formula, (rate, turn), (x, gradient, *states), names of the new ones, attrs)`.
    """

    def rewrite(node: Node, builder: Builder) -> list[Node]:
        attrs = {**defaults, **node.attrs}
        rate, turn, rest = node.inputs[0], node.inputs[1], node.inputs[2:]
        n, left = divmod(len(rest), 2 + states)
        if left or len(node.outputs) != n * (1 + states):
            raise UnsupportedError(
                f"{len(rest)} tensors for {node.op_type} at node {node.name!r}",
                f"{2 + states} for each that is trained",
                "export the model again",
            )
        f = Formula(node, builder, rest[0]) if rest else None
        if f is None:
            return []
        turn = f.cast(turn, builder.type(rest[0]).dtype)
        for i in range(n):
            step(f, (rate, turn), rest[i::n], node.outputs[i::n], attrs)
        return f.nodes

    return rewrite


def _regularised(f: Formula, x: str, gradient: str, by: float) -> str:
    return f("Add", f("Mul", x, by), gradient) if by else gradient


def _adagrad(f: Formula, when: tuple[str, str], x: Any, into: Any, attrs: dict[str, Any]) -> None:
    rate, turn = when
    value, gradient, squares = x
    rate = f("Div", rate, f("Add", f("Mul", turn, attrs["decay_factor"]), 1.0))
    gradient = _regularised(f, value, gradient, attrs["norm_coefficient"])
    squares = f("Add", squares, f("Mul", gradient, gradient), into=into[1])
    size = f("Add", f("Sqrt", squares), attrs["epsilon"])
    f("Sub", value, f("Div", f("Mul", rate, gradient), size), into=into[0])


def _adam(f: Formula, when: tuple[str, str], x: Any, into: Any, attrs: dict[str, Any]) -> None:
    rate, turn = when
    value, gradient, first, second = x
    alpha, beta, after = attrs["alpha"], attrs["beta"], attrs["norm_coefficient_post"]
    gradient = _regularised(f, value, gradient, attrs["norm_coefficient"])
    kept, new = f("Mul", first, alpha), f("Mul", gradient, 1 - alpha)
    first = f("Add", kept, new, into=into[1])
    square = f("Mul", gradient, gradient)
    second = f("Add", f("Mul", second, beta), f("Mul", square, 1 - beta), into=into[2])
    size = f("Add", f("Sqrt", second), attrs["epsilon"])
    # Bias correction, from the first turn on.
    left = [f("Sub", 1.0, f("Pow", f.number(decay), turn)) for decay in (beta, alpha)]
    corrected = f("Div", f("Mul", rate, f("Sqrt", left[0])), left[1])
    rate = f("Where", f("Greater", turn, 0.0), corrected, rate)
    moved = f("Mul", rate, f("Div", first, size))
    if after:
        f("Mul", f("Sub", value, moved), 1 - after, into=into[0])
    else:
        f("Sub", value, moved, into=into[0])


def _momentum(f: Formula, when: tuple[str, str], x: Any, into: Any, attrs: dict[str, Any]) -> None:
    rate, turn = when
    value, gradient, speed = x
    gradient = _regularised(f, value, gradient, attrs["norm_coefficient"])
    share = f("Where", f("Greater", turn, 0.0), attrs["beta"], 1.0)
    kept = f("Mul", speed, attrs["alpha"])
    speed = f("Add", kept, f("Mul", share, gradient), into=into[1])
    if attrs["mode"] == "nesterov":
        speed = f("Add", gradient, f("Mul", speed, attrs["alpha"]))
    f("Sub", value, f("Mul", rate, speed), into=into[0])


DIALECT = Dialect(
    "ai.onnx.preview.training",
    {
        "Adagrad": _optimizer(
            _adagrad, {"decay_factor": 0.0, "epsilon": 1e-6, "norm_coefficient": 0.0}, 1
        ),
        "Adam": _optimizer(
            _adam,
            {
                "alpha": 0.9,
                "beta": 0.999,
                "epsilon": 1e-6,
                "norm_coefficient": 0.0,
                "norm_coefficient_post": 0.0,
            },
            2,
        ),
        "Momentum": _optimizer(_momentum, {"norm_coefficient": 0.0}, 1),
    },
    "train with one of these",
)


@rule("BatchNormalization", until=NEWEST)
def _batch_norm_training(node: Node, builder: Builder, opset: int) -> list[Node]:
    """Means and variances of the input itself, in fp32 as the statistics are."""
    if not node.attrs.get("training_mode", 0):
        return [node]
    x, scale, bias, mean, variance = node.inputs
    shape, f = builder.type(x).shape, Formula(node, builder, mean)
    statistics = builder.type(mean).dtype
    wide = x if builder.type(x).dtype is statistics else f.cast(x, statistics)
    axes = f.integers([i for i in range(len(shape)) if i != 1])
    centre = f("ReduceMean", wide, axes)
    off = f("Sub", wide, centre)
    square = f("ReduceMean", f("Mul", off, off), axes)
    channel = f.integers(shape[1:2])
    now = [f("Reshape", part, channel) for part in (centre, square)]
    inference = {"epsilon": node.attrs.get("epsilon", 1e-5)}
    operands = (x, scale, bias, *now)
    f.nodes.append(node.with_(inputs=operands, outputs=node.outputs[:1], attrs=inference))
    momentum = node.attrs.get("momentum", 0.9)
    running = zip((mean, variance), now, node.outputs[1:], strict=False)
    for old, new, into in running:
        if into:
            f("Add", f("Mul", old, momentum), f("Mul", new, 1 - momentum), into=into)
    return f.nodes


@rule("Dropout", until=NEWEST)
def _dropout_training(node: Node, builder: Builder, opset: int) -> list[Node]:
    """A mask of bits, and what it keeps; without a seed, of seed 0."""
    x, ratio, mode = (*node.inputs, "", "")[:3]
    training = builder.known(mode)
    if training is None or not training.item():
        return [node]
    f = Formula(node, builder, ratio or x)
    keep = f("Sub", 1.0, ratio or f.number(0.5))
    mask = builder.fresh(f"{node.name}/mask")
    wanted = (mask, *(o for o in node.outputs[1:] if o))
    attrs = {"shape": builder.type(x).shape, "seed": node.attrs.get("seed", 0)}
    f.nodes.append(Node(f"{node.name}/mask", "DropOutGenMask", (keep,), wanted, attrs))
    f.nodes.append(Node(node.name, "DropOutDoMask", (x, mask, keep), node.outputs[:1]))
    return f.nodes
