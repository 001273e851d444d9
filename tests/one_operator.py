"""Graphs of one operator with random shapes, attributes and types, for every AI Core kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from npusim.ir import Constant, DType, Graph, Node, Tensor, TensorType, verify
from npusim.ops import infer_node

#: Draws one element of a sequence.
Pick = Callable[[Sequence[Any]], Any]

#: Extents at which kernels change course: one, primes, about a block, a repeat, a small buffer.
EXTENTS = (1, 2, 3, 7, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257, 1023, 4099)
MOST = 20_000  #: elements of an operand
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = ("float32", "float16", "bfloat16")
ANY = (*FLOATS, "int8", "uint8", "int32", "bool")


@dataclass(frozen=True)
class Case:
    """One operator; operands at `fixed` are constants."""

    op_type: str
    inputs: tuple[np.ndarray | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()
    outputs: int = 1

    def graph(self) -> Graph:
        """The graph of it."""
        g = Graph(self.op_type, [], {}, [], [])
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(self.inputs)]
        types: list[TensorType | None] = []
        for i, (name, a) in enumerate(zip(names, self.inputs, strict=True)):
            types.append(None if a is None else TensorType(a.shape, DType.of(a.dtype)))
            if a is None:
                continue
            g.tensors[name] = Tensor(name, a.shape, DType.of(a.dtype))
            if i in self.fixed:
                g.constants[name] = Constant.of(a)
            else:
                g.inputs.append(name)
        out = tuple(f"y{i}" for i in range(self.outputs))
        node = Node("n", self.op_type, tuple(names), out, self.attrs)
        for name, t in zip(out, infer_node(node, types, self.inputs), strict=True):
            g.tensors[name] = Tensor(name, t.shape, t.dtype)
        g.nodes, g.outputs = [node], list(out)
        return verify(g)

    def given(self) -> dict[str, np.ndarray]:
        """What the run is given."""
        pairs = enumerate(self.inputs)
        return {f"x{i}": a for i, a in pairs if a is not None and i not in self.fixed}


def shape(pick: Pick, rank: int, most: int = MOST) -> tuple[int, ...]:
    """Random extents; sometimes one is 0."""
    found: list[int] = []
    size = 1
    for _ in range(rank):
        n = pick([e for e in EXTENTS if size * e <= most])
        size *= n
        found.append(n)
    order = pick((1, -1))
    if rank and pick(range(12)) == 0:
        found[pick(range(rank))] = 0
    return tuple(found[::order])


def array(pick: Pick, dims: Sequence[int], dtype: str) -> np.ndarray:
    """Moderate values, other than zero where they are floats."""
    rng = np.random.default_rng(pick(range(1000)))
    if dtype == "bool":
        return rng.random(dims) < 0.5
    if dtype in FLOATS:
        values = rng.uniform(0.25, 2, dims) * rng.choice([-1, 1], dims)
        return values.astype(BFLOAT16 if dtype == "bfloat16" else dtype)
    return rng.integers(0 if dtype == "uint8" else -9, 10, dims).astype(dtype)


def _ints(values: Any) -> np.ndarray:
    return np.array(values, np.int64)


# -- families: each gives a case --------------------------------------------------------


def unary(pick: Pick) -> Case:
    op = pick(("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Exp", "Gelu", "Sign", "Floor", "Identity",
               "Atan", "Shrink", "LeakyRelu", "HardSwish", "Softplus", "IsNaN"))  # fmt: skip
    x = array(pick, shape(pick, pick(range(7))), pick(FLOATS))
    return Case(op, (x,))


def integers(pick: Pick) -> Case:
    """What floats have, of integers and booleans."""
    dims, dtype = shape(pick, pick(range(1, 5))), pick(("int8", "uint8", "int32", "bool"))
    x, y = (array(pick, dims, dtype) for _ in range(2))
    if dtype == "bool":
        op = pick(("Not", "Equal", "Identity"))
        return Case(op, (x, y) if op == "Equal" else (x,))
    op = pick(("Add", "Sub", "Mul", "Max", "Min", "Equal", "Less", "Abs", "Sign", "Relu", "Clip",
               "ReduceSum", "ReduceMax", "MaxPool"))  # fmt: skip
    if op in ("Abs", "Sign", "Relu", "Clip"):
        return Case(op, (x,))
    if op.startswith("Reduce"):
        return Case(op, (x, _ints([pick(range(len(dims)))])), fixed=(1,))
    if op == "MaxPool":
        image = array(pick, (1, pick((3, 16, 33)), 8, 9), dtype)
        return Case(op, (image,), _window(pick, (8, 9)))
    return Case(op, (x, y), fixed=pick(((), (0,), (1,))))


def other_ranks(pick: Pick) -> Case:
    """Windows of one and of three dimensions."""
    size = tuple(pick((1, 5, 8, 11)) for _ in range(pick((1, 3))))
    attrs, dtype = _window(pick, size), pick(FLOATS[:2])
    x = array(pick, (pick((1, 2)), pick((1, 3, 16)), *size), dtype)
    op = pick(("Conv", "Conv", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool"))
    if op == "Conv":
        group = pick([g for g in (1, 3, 16) if x.shape[1] % g == 0])
        co, ci = group * pick((1, 2, 17)), x.shape[1] // group
        w = array(pick, (co, ci, *attrs["kernel_shape"]), dtype)
        return Case(op, (x, w), {**attrs, "group": group}, fixed=pick(((1,), ())))
    if op == "AveragePool":
        attrs |= {"ceil_mode": pick((0, 1)), "count_include_pad": pick((0, 1))}
    if op == "LpPool":
        attrs["p"] = pick((1, 2, 3))
    return Case(op, (x,), {} if op.startswith("Global") else attrs)


def positive(pick: Pick) -> Case:
    x = np.abs(array(pick, shape(pick, pick(range(5))), pick(FLOATS)))
    return Case(pick(("Log", "Sqrt", "Reciprocal")), (x,))


def binary(pick: Pick) -> Case:
    """Broadcasting, one operand maybe a constant or a scalar."""
    dtype = pick((*FLOATS, "int32"))
    ops = ("Add", "Sub", "Mul", "Max", "Min", "Equal", "Less", "GreaterOrEqual")
    op = pick(ops if dtype == "int32" else (*ops, "Div", "PRelu", "Pow"))
    whole = shape(pick, pick(range(6)))
    pair = []
    for _ in range(2):
        dims = [1 if pick((0, 0, 1)) else n for n in whole]
        pair.append(array(pick, dims[pick(range(len(dims) + 1)) :], dtype))
    if op == "PRelu":
        pair[0] = array(pick, np.broadcast_shapes(*(p.shape for p in pair)), dtype)
    if op == "Pow":
        pair = [np.abs(pair[0]), pair[1]]
    return Case(op, tuple(pair), fixed=pick(((), (0,), (1,))))


def logic(pick: Pick) -> Case:
    x, y = (array(pick, d, "bool") for d in [shape(pick, pick(range(4)))] * 2)
    if pick((0, 1)):
        y = y.reshape(-1)[:1].reshape((1,) * y.ndim) if y.size else y
    op = pick(("And", "Or", "Xor"))
    return Case(op, (x, y), fixed=pick(((), (0,), (1,))))


def bits(pick: Pick) -> Case:
    dims = shape(pick, pick(range(4)))
    x = array(pick, dims, "int32")
    y = array(pick, dims if pick((0, 1)) else (), "int32")
    op = pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor"))
    return Case(op, (x, y), fixed=pick(((), (1,))))


def where(pick: Pick) -> Case:
    dims, dtype = shape(pick, pick(range(5))), pick((*FLOATS, "int32"))
    x, y = array(pick, dims, dtype), array(pick, dims[pick(range(len(dims) + 1)) :], dtype)
    return Case("Where", (array(pick, dims, "bool"), x, y), fixed=pick(((), (0,), (1,), (2,))))


def cast(pick: Pick) -> Case:
    x = array(pick, shape(pick, pick(range(5))), pick(ANY))
    return Case("Cast", (x,), {"to": pick((*ANY, "int64"))})


def softmax(pick: Pick) -> Case:
    rank = pick(range(1, 5))
    x = array(pick, shape(pick, rank), pick(FLOATS))
    return Case(pick(("Softmax", "LogSoftmax")), (x,), {"axis": pick(range(-rank, rank))})


def reduce(pick: Pick) -> Case:
    rank = pick(range(1, 6))
    x = array(pick, shape(pick, rank), pick(FLOATS))
    kinds = ("Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp")
    axes = sorted({pick(range(rank)) for _ in range(pick(range(1, rank + 1)))})
    attrs = {"keepdims": pick((0, 1))}
    if pick(range(4)) == 0:
        return Case(f"Reduce{pick(kinds)}", (x,), attrs)
    return Case(f"Reduce{pick(kinds)}", (x, _ints(axes)), attrs, fixed=(1,))


def normal(pick: Pick) -> Case:
    rank = pick(range(1, 5))
    x = array(pick, shape(pick, rank), pick(FLOATS))
    axis = pick(range(rank))
    scale, bias = (array(pick, x.shape[axis:], x.dtype.name) for _ in range(2))
    if pick((0, 1)):
        return Case("RMSNormalization", (x, scale), {"axis": axis})
    operands = (x, scale, bias) if pick((0, 1)) else (x, scale)
    return Case("LayerNormalization", operands, {"axis": axis})


def channel_norm(pick: Pick) -> Case:
    n, c, h, w = (pick((1, 2, 3)), pick((1, 3, 16, 17, 32)), *shape(pick, 2, 400))
    x = array(pick, (n, c, h, w), pick(FLOATS[:2]))
    vectors = [np.abs(array(pick, (c,), x.dtype.name)) for _ in range(4)]
    op = pick(("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN"))
    if op == "BatchNormalization":
        return Case(op, (x, *vectors))
    if op == "LRN":
        return Case(op, (x,), {"size": pick((1, 3, 5))})
    groups = {"num_groups": pick([g for g in (1, 2, 4, 16) if c % g == 0])}
    return Case(op, (x, *vectors[:2]), groups if op == "GroupNormalization" else {})


def matmul(pick: Pick) -> Case:
    m, k, n = (pick(EXTENTS[:-2]) for _ in range(3))
    batch = shape(pick, pick(range(3)), 6)
    dtype = pick(FLOATS)
    a = array(pick, (*batch, m, k), dtype)
    b = array(pick, (*batch[pick(range(len(batch) + 1)) :], k, n), dtype)
    return Case("MatMul", (a, b), fixed=pick(((), (1,))))


def gemm(pick: Pick) -> Case:
    m, k, n = (pick(EXTENTS[:-2]) for _ in range(3))
    ta, tb = pick((0, 1)), pick((0, 1))
    dtype = pick(FLOATS)
    a = array(pick, (k, m) if ta else (m, k), dtype)
    b = array(pick, (n, k) if tb else (k, n), dtype)
    c = array(pick, pick(((n,), (m, n), (m, 1), ())), dtype)
    attrs = {"transA": ta, "transB": tb, "alpha": pick((1.0, 0.5)), "beta": pick((1.0, 2.0))}
    return Case("Gemm", (a, b, c), attrs, fixed=pick(((), (1,), (1, 2))))


def _window(pick: Pick, x: tuple[int, ...]) -> dict[str, Any]:
    """A window that the image holds at least once."""
    kernel, dilations, strides, pads = [], [], [], []
    for n in x:
        d = pick((1, 1, 2, 3))
        k = pick([k for k in (1, 2, 3, 5, 7) if (k - 1) * d < n or k == 1])
        kernel, dilations = [*kernel, k], [*dilations, d]
        strides.append(pick((1, 1, 2, 3)))
        pads.append((pick(range(k)), pick(range(k))))
    flat = [p[0] for p in pads] + [p[1] for p in pads]
    return {"kernel_shape": kernel, "dilations": dilations, "strides": strides, "pads": flat}


def conv(pick: Pick) -> Case:
    group = pick((1, 1, 1, 2, 3, 16))
    ci, co = group * pick((1, 1, 3, 16, 17)), group * pick((1, 2, 16, 19))
    size = tuple(pick((1, 3, 7, 8, 13, 17)) for _ in range(2))
    dtype = pick(FLOATS)
    attrs = _window(pick, size)
    x = array(pick, (pick((1, 2)), ci, *size), dtype)
    w = array(pick, (co, ci // group, *attrs["kernel_shape"]), dtype)
    operands = (x, w, array(pick, (co,), dtype)) if pick((0, 1)) else (x, w)
    return Case("Conv", operands, {**attrs, "group": group}, fixed=pick(((1,), (1, 2), ())))


def pool(pick: Pick) -> Case:
    size = tuple(pick((1, 3, 7, 8, 13, 17, 40)) for _ in range(2))
    x = array(pick, (pick((1, 2)), pick((1, 3, 16, 17, 40)), *size), pick(FLOATS[:2]))
    if pick(range(4)) == 0:
        return Case(pick(("GlobalAveragePool", "GlobalMaxPool")), (x,))
    attrs = {**_window(pick, size), "ceil_mode": pick((0, 1))}
    if pick((0, 1)):
        return Case("MaxPool", (x,), attrs)
    return Case("AveragePool", (x,), {**attrs, "count_include_pad": pick((0, 1))})


def transpose(pick: Pick) -> Case:
    rank = pick(range(7))
    left, perm = list(range(rank)), []
    while left:
        perm.append(left.pop(pick(range(len(left)))))
    return Case("Transpose", (array(pick, shape(pick, rank), pick(ANY)),), {"perm": perm})


def concat(pick: Pick) -> Case:
    rank = pick(range(1, 5))
    axis, dims, dtype = pick(range(rank)), shape(pick, rank, 5000), pick(ANY)
    parts = []
    for _ in range(pick((1, 2, 3, 5))):
        part = list(dims)
        part[axis] = pick((0, 1, 3, 16, 33))
        parts.append(array(pick, part, dtype))
    return Case("Concat", tuple(parts), {"axis": axis})


def split(pick: Pick) -> Case:
    rank = pick(range(1, 5))
    axis, dims = pick(range(rank)), list(shape(pick, rank, 5000))
    parts = [pick((1, 2, 5, 16)) for _ in range(pick((1, 2, 3)))]
    dims[axis] = sum(parts)
    x = array(pick, dims, pick(ANY))
    return Case("Split", (x, _ints(parts)), {"axis": axis}, fixed=(1,), outputs=len(parts))


def slices(pick: Pick) -> Case:
    dims = shape(pick, pick(range(1, 5)))
    axes = sorted({pick(range(len(dims))) for _ in range(2)})
    bounds = [[pick(range(-dims[a] - 1, dims[a] + 2)) for a in axes] for _ in range(2)]
    steps = [pick((1, 1, 2, 3, -1, -2)) for _ in axes]
    operands = (array(pick, dims, pick(ANY)), *map(_ints, (*bounds, axes, steps)))
    return Case("Slice", operands, fixed=(1, 2, 3, 4))


def pad(pick: Pick) -> Case:
    dims = shape(pick, pick(range(1, 5)), 5000)
    pads = [pick((0, 0, 1, 2, 17)) for _ in range(2 * len(dims))]
    x = array(pick, dims, pick(ANY))
    mode = pick(("constant", "edge", "reflect") if x.size else ("constant",))
    if mode == "reflect":
        pads = [min(p, d - 1) for p, d in zip(pads, dims * 2, strict=True)]
    fill = array(pick, (), x.dtype.name)
    return Case("Pad", (x, _ints(pads), fill), {"mode": mode}, fixed=(1, 2))


def spread(pick: Pick) -> Case:
    dims = shape(pick, pick(range(5)), 600)
    if pick((0, 1)):
        repeats = [pick((1, 1, 2, 3)) for _ in dims]
        return Case("Tile", (array(pick, dims, pick(ANY)), _ints(repeats)), fixed=(1,))
    kept = [1 if pick((0, 1)) else n for n in dims]
    front = shape(pick, pick((0, 1)), 17)
    x = array(pick, kept[pick((0, 0, 1)) if kept and kept[0] == 1 else 0 :], pick(ANY))
    return Case("Expand", (x, _ints([*front, *dims])), fixed=(1,))


def gather(pick: Pick) -> Case:
    rank = pick(range(1, 4))
    axis, extents = pick(range(rank)), list(shape(pick, rank, 8000))
    extents[axis] = max(extents[axis], 1)
    x = array(pick, extents, pick(ANY))
    dims = shape(pick, pick(range(3)), 60)
    rng = np.random.default_rng(pick(range(1000)))
    index = rng.integers(-x.shape[axis], x.shape[axis], dims).astype(pick(("int64", "int32")))
    return Case("Gather", (x, index), {"axis": axis}, fixed=pick(((), (1,))))


def cumulative(pick: Pick) -> Case:
    """Values around one, whose products stay moderate."""
    rank = pick(range(1, 5))
    dims, dtype = shape(pick, rank, 8000), pick((*FLOATS, "int32"))
    op, rng = pick(("CumSum", "CumProd")), np.random.default_rng(pick(range(1000)))
    x = rng.integers(-1, 2, dims) if dtype == "int32" else rng.uniform(0.99, 1.01, dims)
    attrs = {"exclusive": pick((0, 1)), "reverse": pick((0, 1))}
    axis = np.array(pick(range(-rank, rank)), np.int64)
    kind = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)
    return Case(op, (x.astype(kind), axis), attrs, fixed=pick(((1,), (1,), ())))


def _tuples(pick: Pick, dims: Sequence[int], extents: Sequence[int]) -> np.ndarray:
    """Index tuples into dimensions of these extents, counted from either end."""
    rng = np.random.default_rng(pick(range(1000)))
    parts = [rng.integers(-n, n, dims) if n else np.zeros(dims, int) for n in extents]
    return np.stack(parts, -1).astype(pick(("int64", "int32")))


def gather_tuples(pick: Pick) -> Case:
    rank = pick(range(1, 5))
    dims = [max(n, 1) for n in shape(pick, rank, 6000)]
    if pick((0, 1)):
        axis = pick(range(rank))
        wanted = [pick((1, n)) for n in dims]
        wanted[axis] = pick((0, 1, 5, 33))
        index = _tuples(pick, wanted, dims[axis : axis + 1])[..., 0]
        return Case("GatherElements", (array(pick, dims, pick(ANY)), index), {"axis": axis})
    batch = pick(range(rank))
    k = pick(range(1, rank - batch + 1))
    chosen = (*dims[:batch], *shape(pick, pick(range(3)), 60))
    index = _tuples(pick, chosen, dims[batch : batch + k])
    return Case("GatherND", (array(pick, dims, pick(ANY)), index), {"batch_dims": batch})


def scatter(pick: Pick) -> Case:
    """Whole numbers, whose sums are exact; no long products of duplicates."""
    rank = pick(range(1, 4))
    dims = [max(n, 1) for n in shape(pick, rank, 4000)]
    reduction = pick(("none", "none", "add", "mul", "max", "min"))
    dtype = pick(ANY if reduction == "none" else ("float32", "float16", "int32"))
    x = np.round(array(pick, dims, dtype))
    if pick((0, 1)):
        axis = pick(range(rank))
        wanted = [pick((1, n, n)) for n in dims]
        wanted[axis] = pick((1, 5, 33))
        index = _tuples(pick, wanted, dims[axis : axis + 1])[..., 0]
        attrs = {"axis": axis, "reduction": reduction}
        updates = np.round(array(pick, wanted, dtype))
        return Case("ScatterElements", (x, index, updates.astype(x.dtype)), attrs)
    k = pick(range(1, rank + 1))
    chosen = shape(pick, pick(range(3)), 60)
    updates = np.round(array(pick, (*chosen, *dims[k:]), dtype)).astype(x.dtype)
    index = _tuples(pick, chosen, dims[:k])
    return Case("ScatterND", (x, index, updates), {"reduction": reduction})


def cache(pick: Pick) -> Case:
    """A cache [N, …] with an update from a position of each of N on."""
    dims = [pick((1, 2, 5)), pick((1, 3)), pick((4, 9, 33)), pick((1, 7, 64))]
    axis, mode = pick((1, 2, 3, -1, -2)), pick(("linear", "circular"))
    part, extent = list(dims), dims[axis]
    part[axis] = pick([n for n in (1, 2, 3) if n <= extent])
    x, update = (array(pick, d, pick(("float16", "int8"))) for d in (dims, part))
    room = extent if mode == "circular" else extent - part[axis] + 1
    starts = np.random.default_rng(pick(range(100))).integers(0, room, dims[0])
    given = (x, update.astype(x.dtype), starts)[: pick((2, 3, 3))]
    return Case("TensorScatter", given, {"axis": axis, "mode": mode})


def reversed_parts(pick: Pick) -> Case:
    x = array(
        pick, (pick((1, 3, 17)), pick((1, 4, 5)), *shape(pick, pick(range(3)), 70)), "float16"
    )
    time = pick((0, 1))
    lengths = np.array([pick(range(1, x.shape[time] + 1)) for _ in range(x.shape[1 - time])])
    attrs = {"time_axis": time, "batch_axis": 1 - time}
    return Case("ReverseSequence", (x, lengths), attrs, fixed=(1,))


def resize(pick: Pick) -> Case:
    mode = pick(("nearest", "linear", "cubic"))
    x = array(pick, (pick((1, 2)), pick((1, 3, 16)), pick((1, 3, 8, 17)), pick((1, 5, 33))),
              pick(FLOATS[:2]))  # fmt: skip
    attrs: dict[str, Any] = {"mode": mode}
    attrs["coordinate_transformation_mode"] = pick(
        ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
    )
    if mode != "nearest":
        attrs["antialias"] = pick((0, 0, 1))
    if pick((0, 1)):
        scales = np.array([1, 1, pick((1, 1.5, 2)), pick((1, 2, 2.3))], np.float32)
        return Case("Resize", (x, None, scales), attrs, fixed=(2,))
    sizes = _ints([*x.shape[:2], pick((1, 7, 16)), pick((5, 16, 40))])
    return Case("Resize", (x, None, None, sizes), attrs, fixed=(3,))


def bytes_left(pick: Pick) -> Case:
    dims, dtype = shape(pick, pick(range(1, 4)), 3000), pick(("int8", "uint8"))
    x, y = (array(pick, d, dtype) for d in (dims, dims[pick(range(len(dims))) :]))
    return Case("Mod", (x, np.where(y == 0, 7, y).astype(dtype)), {"fmod": pick((0, 1))})


def extremes(pick: Pick) -> Case:
    rank = pick(range(1, 4))
    dims = tuple(max(n, 1) for n in shape(pick, rank))
    x = array(pick, dims, pick(FLOATS))
    axis = pick(range(-rank, rank))
    op = pick(("ArgMax", "ArgMin", "Hardmax", "TopK"))
    if op == "Hardmax":
        return Case(op, (x,), {"axis": axis})
    if op == "TopK":
        k = _ints([pick(range(min(dims[axis], 40))) + 1])
        return Case(op, (x, k), {"axis": axis, "largest": pick((1, 1, 0))}, (1,), 2)
    return Case(op, (x,), {"axis": axis, "keepdims": pick((0, 1))})


def one_hot(pick: Pick) -> Case:
    depth = pick(EXTENTS[:-2])
    index = array(pick, shape(pick, pick(range(3)), 100), "int32").astype(pick(("int32", "int64")))
    values = array(pick, (2,), pick((*FLOATS, "int32")))
    return Case("OneHot", (index, _ints(depth), values), {"axis": -1}, fixed=(1, 2))


def blocks(pick: Pick) -> Case:
    b = pick((2, 3))
    n, c, h, w = pick((1, 2)), pick((1, 4, 5)), pick((1, 3, 8)), pick((1, 5, 16))
    if pick((0, 1)):
        return Case(
            "SpaceToDepth", (array(pick, (n, c, h * b, w * b), pick(ANY)),), {"blocksize": b}
        )
    x = array(pick, (n, c * b * b, h, w), pick(ANY))
    return Case("DepthToSpace", (x,), {"blocksize": b, "mode": pick(("DCR", "CRD"))})


FAMILIES = {
    f.__name__: f
    for f in (
        unary, integers, other_ranks, positive, binary, logic, bits, where, cast, softmax, reduce,
        normal, channel_norm,
        matmul, gemm, conv, pool, transpose, concat, split, slices, pad, spread, gather, extremes,
        one_hot, blocks, cumulative, gather_tuples, scatter, cache, reversed_parts, resize,
        bytes_left,
    )
}  # fmt: skip
