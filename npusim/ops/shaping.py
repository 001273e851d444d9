"""Operators on shapes: reshaping, tensors made of nothing, and questions about shapes."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import Movement, axes_of, axis_of, check, static, static_ints, supported
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, broadcast, operator, schema


class _Reshaped(Movement):
    """Base of the operators that only give the elements another shape."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0].reshape(out[0].shape)]


@operator("Reshape")
class Reshape(_Reshaped):
    """0 copies a dimension (unless allowzero), one -1 takes what is left."""

    attrs = schema(allowzero=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, dims = x.type(0), list(static_ints(x, 1, "shape"))
        if not attrs["allowzero"]:
            for i, d in enumerate(dims):
                if d == 0:
                    check(i < len(t.shape), f"0 at dimension {i} of {dims}", "a dimension to copy")
                    dims[i] = t.shape[i]
        if dims.count(-1) == 1:
            rest = prod(d for d in dims if d != -1)
            dims[dims.index(-1)] = t.size // rest if rest else 0
        check(
            min(dims, default=0) >= 0 and prod(dims) == t.size,
            f"Reshape of {t.shape} ({t.size} elements) to {static_ints(x, 1, 'shape')}",
            f"a shape of {t.size} elements, with at most one -1",
            "bind the model's inputs to shapes that its constants allow",
        )
        return [TensorType(tuple(dims), t.dtype)]


@operator("Flatten")
class Flatten(_Reshaped):
    """To a matrix: dimensions before `axis`, and the rest."""

    attrs = schema(axis=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, axis = x.type(0), attrs["axis"]
        rank = len(t.shape)
        check(-rank <= axis <= rank, f"Flatten at axis {axis} of {t.shape}", f"{-rank} … {rank}")
        axis = axis + rank if axis < 0 else axis
        return [TensorType((prod(t.shape[:axis]), prod(t.shape[axis:])), t.dtype)]


@operator("Squeeze")
class Squeeze(_Reshaped):
    """Drop dimensions of extent 1: those of the second input, or all."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        if x.has(1):
            axes = axes_of(static_ints(x, 1, "axes"), len(t.shape))
        else:
            axes = tuple(i for i, d in enumerate(t.shape) if d == 1)
        check(
            all(t.shape[i] == 1 for i in axes), f"Squeeze of axes {axes} of {t.shape}", "extents 1"
        )
        return [TensorType(tuple(d for i, d in enumerate(t.shape) if i not in axes), t.dtype)]


@operator("Unsqueeze")
class Unsqueeze(_Reshaped):
    """Insert dimensions of extent 1 at the axes (of the result) in the second input."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t, axes = x.type(0), static_ints(x, 1, "axes")
        dims = list(t.shape)
        for a in axes_of(axes, len(dims) + len(axes)):
            dims.insert(a, 1)
        return [TensorType(tuple(dims), t.dtype)]


@operator("Expand")
class Expand(Movement):
    """Broadcast with the shape in the second input."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        return [TensorType(broadcast(t.shape, static_ints(x, 1, "shape")), t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.broadcast_to(x[0], out[0].shape)]


@operator("Shape")
class Shape(Movement):
    """The input's shape, or the part of it from `start` to `end`."""

    attrs = schema(start=0, end=None)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        part = x.type(0).shape[attrs["start"] : attrs["end"]]
        return [TensorType((len(part),), DType.INT64)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.array(x[0].shape[attrs["start"] : attrs["end"]], np.int64)]


@operator("Size")
class Size(Movement):
    """The input's number of elements."""

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType((), DType.INT64)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [np.array(x[0].size, np.int64)]


@operator("ConstantOfShape")
class ConstantOfShape(Movement):
    """A tensor of the shape in its input, filled with `value` (a one-element array)."""

    attrs = schema(value=None)

    @staticmethod
    def fill(attrs: Attrs) -> np.ndarray:
        """The one element; fp32 zero by default."""
        value = attrs.get("value")
        return np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        dtype = DType.of(ConstantOfShape.fill(attrs).dtype)
        shape = static_ints(x, 0, "shape")
        check(min(shape, default=0) >= 0, f"shape {shape}", "extents of 0 and more")
        return [TensorType(shape, dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [
            np.broadcast_to(ConstantOfShape.fill(attrs), out[0].shape or (1,)).reshape(out[0].shape)
        ]


@operator("Range")
class Range(Movement):
    """start, start + delta, … below limit."""

    attrs = schema(stash_type=1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        names = ("start", "limit", "delta")
        start, limit, delta = (static(x, i, name).item() for i, name in enumerate(names))
        check(delta != 0, "Range with delta 0", "a step other than 0")
        n = max(int(np.ceil((limit - start) / delta)), 0)
        return [TensorType((n,), x.type(0).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        start, delta = x[0].reshape(()), x[2].reshape(())
        index = np.arange(out[0].size)
        if x[0].dtype.kind != "f" and x[0].dtype.kind != "V":
            return [(start + index * delta).astype(x[0].dtype)]
        return [start.astype(np.float32) + index.astype(np.float32) * delta.astype(np.float32)]


@operator("Dropout")
class Dropout(Movement):
    """Inference form: the input itself, and a mask of ones.

    A model in training mode has DropOutGenMask and DropOutDoMask instead.
    """

    attrs = schema(seed=None)
    elementwise = True

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        training = x.has(2) and bool(static(x, 2, "training_mode").item())
        supported(not training, "Dropout in training mode", "DropOutGenMask and DropOutDoMask")
        t = x.type(0)
        return [t, TensorType(t.shape, DType.BOOL)][:n_outputs]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        return [x[0], np.ones(x[0].shape, np.bool_)][: len(out)]


@operator("OneHot")
class OneHot(Operator):
    """`values` [off, on] at the indices, along a new axis of extent `depth`."""

    attrs = schema(axis=-1)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        depth = int(static(x, 1, "depth").item())
        dims = list(x.type(0).shape)
        dims.insert(axis_of(attrs["axis"], len(dims) + 1), depth)
        return [TensorType(tuple(dims), x.type(2).dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axis = axis_of(attrs["axis"], x[0].ndim + 1)
        depth = out[0].shape[axis]
        index = x[0].astype(np.int64)
        index = np.expand_dims(np.where(index < 0, index + depth, index), axis)
        hot = index == np.arange(depth).reshape(-1, *(1,) * (x[0].ndim - axis))
        return [np.where(hot, x[2][1], x[2][0])]


@operator("EyeLike")
class EyeLike(Movement):
    """A matrix like the input with ones on diagonal `k`."""

    attrs = schema(dtype=None, k=0)

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        supported(len(t.shape) == 2, f"EyeLike of shape {t.shape}", "a matrix")
        return [TensorType(t.shape, DType.of(attrs["dtype"]) if attrs["dtype"] else t.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        rows, columns = out[0].shape
        return [np.eye(rows, columns, attrs["k"])]
