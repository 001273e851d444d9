"""Row-wise operators of training graphs, as CANN names and splits them."""

from __future__ import annotations

import numpy as np

from npusim.ir import DType, TensorType
from npusim.ops.common import check
from npusim.ops.registry import Arrays, Attrs, Inputs, Operator, Types, Work, operator, schema


class _Rows(Operator):
    """Base: the first input's type; `passes` vector operations per element."""

    passes = 6

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [x.type(0)]

    @classmethod
    def work(cls, x: Types, out: Types, attrs: Attrs) -> Work:
        return Work(vector_ops=cls.passes * x[0].size)


@operator("LayerNorm")
class LayerNorm(_Rows):
    """x, scale, offset → y, mean, variance per row, in x's type."""

    attrs = schema(epsilon=1e-12)
    passes = 9

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        t = x.type(0)
        return [t, *[TensorType((*t.shape[:-1], 1), t.dtype)] * 2]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        mean = x[0].mean(-1, keepdims=True)
        variance = np.square(x[0] - mean).mean(-1, keepdims=True)
        y = (x[0] - mean) / np.sqrt(variance + np.float32(attrs["epsilon"]))
        return [y * x[1] + x[2], mean, variance]


@operator("LayerNormXBackpropV2")
class LayerNormXBackpropV2(_Rows):
    """dy, x, variance, mean, scale → dx, and (x - mean)/σ in fp32 for the scale's gradient."""

    attrs = schema(epsilon=1e-12)
    passes = 12

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [x.type(0), TensorType(x.type(0).shape, DType.FLOAT32)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        dy, data, variance, mean, scale = x
        inverse = 1 / np.sqrt(variance + np.float32(attrs["epsilon"]))
        standard = (data - mean) * inverse
        g = dy * scale * inverse
        dx = g - g.mean(-1, keepdims=True) - standard * (g * standard).mean(-1, keepdims=True)
        return [dx, standard]


@operator("LayerNormBetaGammaBackpropV2")
class LayerNormBetaGammaBackpropV2(_Rows):
    """dy, (x - mean)/σ → gradients of scale and offset, fp32."""

    passes = 4

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType(x.type(0).shape[-1:], DType.FLOAT32)] * 2

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        axes = tuple(range(x[0].ndim - 1))
        return [(x[0] * x[1]).sum(axes), x[0].sum(axes)]


@operator("LayerNormGradV3")
class LayerNormGradV3(_Rows):
    """dy, x, 1/σ, mean, scale → dx, gradients of scale and offset in fp32."""

    passes = 15

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        vector = TensorType(x.type(4).shape, DType.FLOAT32)
        return [x.type(0), vector, vector]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        dy, data, rstd, mean, scale = x
        standard = (data - mean) * rstd
        g = dy * scale
        dx = g - g.mean(-1, keepdims=True) - standard * (g * standard).mean(-1, keepdims=True)
        axes = tuple(range(dy.ndim - 1))
        return [dx * rstd, (dy * standard).sum(axes), dy.sum(axes)]


@operator("SoftmaxV2")
class SoftmaxV2(_Rows):
    """Along the last axis."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        e = np.exp(x[0] - x[0].max(-1, keepdims=True))
        return [e / e.sum(-1, keepdims=True)]


@operator("LogSoftmaxV2")
class LogSoftmaxV2(_Rows):
    """Along the last axis."""

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        shifted = x[0] - x[0].max(-1, keepdims=True)
        return [shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))]


@operator("LogSoftmaxGrad")
class LogSoftmaxGrad(_Rows):
    """dy, y = log softmax → dy - e^y · Σ dy."""

    passes = 4

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        dy, y = x
        return [dy - np.exp(y) * dy.sum(-1, keepdims=True)]


@operator("SoftmaxGradExt")
class SoftmaxGradExt(_Rows):
    """y, dy[, scalar 1] → (dy - Σ y·dy)·y·factor."""

    attrs = schema(factor=1.0)

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y, dy = x[:2]
        return [(dy - (y * dy).sum(-1, keepdims=True)) * y * np.float32(attrs["factor"])]


@operator("SoftmaxGrad")
class SoftmaxGrad(_Rows):
    """y, dy → (dy - Σ y·dy)·y."""

    passes = 4

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y, dy = x
        return [(dy - (y * dy).sum(-1, keepdims=True)) * y]


@operator("ConfusionSoftmaxGrad")
class ConfusionSoftmaxGrad(_Rows):
    """y, dy → dy - Σ y·dy."""

    passes = 4

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        y, dy = x
        return [dy - (y * dy).sum(-1, keepdims=True)]


@operator("UnsortedSegmentSum")
class UnsortedSegmentSum(_Rows):
    """Data (indices…, row…) and indices → the sums of the rows that name each segment."""

    attrs = schema(num_segments=...)
    passes = 1

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        data, rank = x.type(0), len(x.type(1).shape)
        check(data.shape[:rank] == x.type(1).shape, f"indices {x.type(1).shape}", "data's first")
        return [TensorType((attrs["num_segments"], *data.shape[rank:]), data.dtype)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        sums = np.zeros(out[0].shape, np.float32)
        np.add.at(sums, x[1], x[0])
        return [sums]


@operator("SoftmaxCrossEntropyWithLogits")
class SoftmaxCrossEntropyWithLogits(_Rows):
    """Logits, labels (rows, classes) → loss per row, gradient of the logits."""

    passes = 8

    @staticmethod
    def infer(x: Inputs, attrs: Attrs, n_outputs: int) -> list[TensorType]:
        return [TensorType(x.type(0).shape[:-1], x.type(0).dtype), x.type(0)]

    @staticmethod
    def compute(x: Arrays, attrs: Attrs, out: Types) -> list[np.ndarray]:
        shifted = x[0] - x[0].max(-1, keepdims=True)
        total = np.exp(shifted).sum(-1, keepdims=True)
        loss = ((np.log(total) - shifted) * x[1]).sum(-1)
        return [loss, np.exp(shifted) / total - x[1]]
