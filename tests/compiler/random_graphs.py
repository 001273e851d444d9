"""Small random graphs: convolutions, pools, elementwise chains, matrix products, movement.

Values stay moderate (divisors are 1 + |x|, exponents are bounded), so that a narrow type keeps
the direction of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from npusim.ir import DType, Graph
from npusim.models.builder import GraphBuilder

#: Draws one element of a sequence.
Pick = Callable[[Sequence[Any]], Any]

UNARY = (
    "Relu", "Sigmoid", "Tanh", "Neg", "Abs", "HardSwish", "LeakyRelu", "Gelu", "Softplus",
    "HardSigmoid", "Elu", "Erf", "Identity",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


class RandomGraph:
    """Grows a graph node by node; every choice is `pick`'s."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.g = GraphBuilder("random")
        self.tensors: list[str] = []
        self.count = 0

    def build(self, steps: int) -> Graph:
        """A graph of about `steps` operators; its last tensor and maybe another are outputs."""
        if self.pick((True, True, False)):
            shape = tuple(self.pick(c) for c in ((1, 2), (1, 3, 16, 19, 32), (5, 8), (4, 7)))
        else:
            shape = tuple(self.pick(c) for c in ((1, 3), (5, 16), (8, 16, 33)))
        self.tensors = [self.g.input("x", shape)]
        for _ in range(steps):
            x = self.pick(self.tensors[-3:])
            kinds = self.four if len(self.g.shape(x)) == 4 else self.other
            self.pick(kinds)(self, x)
        if len(self.tensors) == 1:
            self.unary(self.tensors[0])
        outputs = [self.tensors[-1]]
        extra = self.pick(self.tensors[1:])
        if extra not in outputs and self.pick((True, False)):
            outputs.append(extra)
        self.g.output(*outputs)
        return self.g.finish()

    # -- helpers -----------------------------------------------------------------------------

    def name(self, what: str) -> str:
        """A fresh name."""
        self.count += 1
        return f"{what}{self.count}"

    def add(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """A node whose result later nodes may use."""
        result = self.g.node(op_type, self.name(op_type), *inputs, **attrs)
        self.tensors.append(result)
        return result

    def weight(self, shape: Sequence[int], std: float = 0.5, mean: float = 0.0) -> str:
        """A random constant."""
        return self.g.weight(self.name("w"), shape, std, mean)

    def positive(self, x: str) -> str:
        """1 + |x|."""
        return self.add("Add", self.add("Abs", x), self.g.constant(self.name("one"), 1.0))

    # -- nodes -------------------------------------------------------------------------------

    def conv(self, x: str) -> None:
        """Convolution, dense, grouped or depthwise."""
        _, c, h, w = self.g.shape(x)
        group = self.pick([n for n in (1, 1, 2, c) if c % n == 0])
        co = group * self.pick((1, 4, 9)) if group > 1 else self.pick((1, 8, 16, 21))
        if group == c > 1:
            co = c
        k = self.pick([n for n in (1, 3) if n <= min(h, w)])
        pad = self.pick((0, k // 2))
        std = (c // group * k * k) ** -0.5
        inputs = [x, self.weight((co, c // group, k, k), std)]
        if self.pick((True, False)):
            inputs.append(self.weight((co,)))
        attrs = {"pads": [pad] * 4, "strides": [self.pick((1, 1, 2))] * 2, "group": group}
        y = self.add("Conv", *inputs, **attrs)
        if self.pick((True, False, False)):
            self.batchnorm(y)

    def batchnorm(self, x: str) -> None:
        """Inference normalisation with statistics of its own."""
        c = self.g.shape(x)[1]
        scale, mean = self.weight((c,), 0.2, 1.0), self.weight((c,))
        shift, variance = self.weight((c,)), self.weight((c,), 0.1, 1.0)
        self.add("BatchNormalization", x, scale, shift, mean, variance)

    def pool(self, x: str) -> None:
        """Max or average pooling, windowed or global."""
        _, _, h, w = self.g.shape(x)
        if min(h, w) < 2 or self.pick((True, False, False)):
            self.add(self.pick(("GlobalAveragePool", "GlobalMaxPool")), x)
            return
        k = self.pick([n for n in (2, 3) if n <= min(h, w)])
        attrs: dict[str, Any] = {"kernel_shape": [k, k], "strides": [self.pick((1, 2))] * 2}
        attrs["pads"] = [self.pick((0, k // 2))] * 4
        if self.pick((True, False)):
            self.add("MaxPool", x, **attrs)
        else:
            self.add("AveragePool", x, count_include_pad=self.pick((0, 1)), **attrs)

    def unary(self, x: str) -> None:
        """An elementwise function."""
        self.add(self.pick(UNARY), x)

    def partial(self, x: str) -> None:
        """A function that is not finite everywhere, on a safe argument."""
        kind = self.pick(("Log", "Sqrt", "Reciprocal", "Div", "Pow", "Exp"))
        if kind == "Exp":
            self.add("Exp", self.add("Tanh", x))
        elif kind == "Div":
            self.add("Div", x, self.positive(self.pick(self.same(x))))
        elif kind == "Pow":
            self.add("Pow", self.positive(x), self.g.constant(self.name("e"), 0.5))
        else:
            self.add(kind, self.positive(x))

    def clip(self, x: str) -> None:
        """Clip with one bound or both."""
        low = self.g.constant(self.name("low"), self.pick((-1.0, 0.0, 0.5)))
        high = self.g.constant(self.name("high"), self.pick((1.0, 6.0)))
        self.add("Clip", *self.pick(((x, low, high), (x, low), (x, "", high))))

    def binary(self, x: str) -> None:
        """Two tensors, or a tensor and a constant, in either order."""
        shape = self.g.shape(x)
        c = shape[1]
        other = self.pick(
            (
                lambda: self.pick(self.same(x)),
                lambda: self.g.constant(self.name("s"), self.pick((0.5, -2.0))),
                lambda: self.weight((c, *[1] * (len(shape) - 2)) if len(shape) > 2 else (c,)),
                lambda: self.weight(shape),
            )
        )()
        pair = self.pick(((x, other), (other, x)))
        self.add(self.pick(BINARY), *pair)

    def same(self, x: str) -> list[str]:
        """Tensors of the shape of `x`."""
        return [t for t in self.tensors if self.g.shape(t) == self.g.shape(x)]

    def squeeze_excite(self, x: str) -> None:
        """Channel gates made from the tensor's own means."""
        gate = self.add("Sigmoid", self.add("GlobalAveragePool", x))
        self.add("Mul", x, gate)

    def concat(self, x: str) -> None:
        """Along the channels, with a tensor that fits."""
        n, _, *rest = self.g.shape(x)
        fit = [t for t in self.tensors if (s := self.g.shape(t))[:1] + s[2:] == (n, *rest)]
        other = self.pick(fit)
        if self.g.shape(x)[1] + self.g.shape(other)[1] <= 64:
            self.add("Concat", x, other, axis=1)

    def shape_ops(self, x: str) -> None:
        """Transpose, Reshape or Slice."""
        shape = self.g.shape(x)
        rank = len(shape)
        kind = self.pick(("Transpose", "Reshape", "Slice"))
        if kind == "Transpose":
            perm = self.pick(([0, *range(2, rank), 1], [*range(rank - 2), rank - 1, rank - 2]))
            self.add("Transpose", x, perm=perm)
        elif kind == "Reshape":
            target = [shape[0], -1] if rank > 2 else [shape[0], 1, -1]
            self.add("Reshape", x, self.g.ints(self.name("shape"), target))
        elif shape[1] > 1:
            ends = [self.g.ints(self.name("at"), [v]) for v in (1, shape[1], 1)]
            self.add("Slice", x, *ends)

    def matmul(self, x: str) -> None:
        """With a constant, then perhaps a bias; or with the tensor's own transpose."""
        shape = self.g.shape(x)
        if len(shape) == 3 and self.pick((True, False)):
            y = self.add("MatMul", x, self.add("Transpose", x, perm=[0, 2, 1]))
            self.add("Mul", y, self.g.constant(self.name("scale"), shape[-1] ** -0.5))
            return
        n = self.pick((1, 8, 16, 24))
        w = self.weight((shape[-1], n), shape[-1] ** -0.5)
        if len(shape) == 2 and self.pick((True, False)):
            self.add("Gemm", x, w, self.weight((n,)))
            return
        y = self.add("MatMul", x, w)
        if self.pick((True, False)):
            self.add("Add", y, self.weight((n,)))

    def normal(self, x: str) -> None:
        """Softmax, layer normalisation or a reduction over the last axis."""
        last = self.g.shape(x)[-1]
        kind = self.pick(("Softmax", "LayerNormalization", "ReduceMean"))
        if kind == "Softmax":
            self.add("Softmax", x, axis=-1)
        elif kind == "ReduceMean":
            self.add("ReduceMean", x, self.g.ints(self.name("axes"), [-1]), keepdims=1)
        elif last > 1:
            scale, shift = self.weight((last,), 0.2, 1.0), self.weight((last,))
            self.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-2)

    four = (
        conv, conv, conv, batchnorm, pool, unary, unary, partial, clip, binary, binary,
        squeeze_excite, concat, shape_ops, normal,
    )  # fmt: skip
    other = (unary, partial, clip, binary, binary, concat, shape_ops, matmul, matmul, normal)


def random_graph(pick: Pick, steps: int) -> Graph:
    """A random float32 graph with one input, x."""
    graph = RandomGraph(pick).build(steps)
    assert all(graph.tensors[o].dtype is DType.FLOAT32 for o in graph.outputs)
    return graph
