"""Random launches of the kernels that CANN alone has, as `random_launches` has them."""

from __future__ import annotations

from random import Random

from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec

F16, F32, I32 = DType.FLOAT16, DType.FLOAT32, DType.INT32
NZ, NC, FZ = Layout.FRACTAL_NZ, Layout.NC1HWC0, Layout.FRACTAL_Z


def instance_norm(rng: Random, size: int) -> KernelArgs:
    """x, scale, offset → y, mean, variance."""
    shape = (rng.randint(1, 3), rng.randint(1, 6), rng.randint(1, 12), rng.randint(1, 200))
    dtype = rng.choice([F16, F32])
    x, v = OperandSpec(shape, dtype), OperandSpec(shape[1:2], dtype)
    kept = OperandSpec((*shape[:2], 1, 1), dtype)
    return KernelArgs("InstanceNorm", (x, v, v), (x, kept, kept), (("epsilon", 1e-6),))


def lp_norm(rng: Random, size: int) -> KernelArgs:
    """LpNorm over any axes, or L2Loss."""
    shape = (*(rng.randint(1, 12) for _ in range(3)), rng.randint(1, 150))
    dtype = rng.choice([F16, F32])
    x = OperandSpec(shape, dtype)
    if rng.random() < 0.2:
        return KernelArgs("L2Loss", (x,), (OperandSpec((), dtype),))
    axes = tuple(sorted(rng.sample(range(4), rng.randint(1, 4))))
    keep = rng.randint(0, 1)
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)
    attrs = (("axes", axes), ("epsilon", 1e-6), ("keepdims", keep), ("p", rng.randint(0, 2)))
    return KernelArgs("LpNorm", (x,), (OperandSpec(kept, dtype),), attrs)


def top_k(rng: Random, size: int) -> KernelArgs:
    """Rows and the assist → values, columns."""
    rows, columns = rng.randint(1, 300), rng.randint(1, 200)
    k = rng.randint(1, columns)
    inputs = (OperandSpec((rows, columns), F16), OperandSpec((8192,), F16))
    outs = (OperandSpec((rows, k), F16), OperandSpec((rows, k), I32))
    return KernelArgs("TopKD", inputs, outs, (("k", k),))


def binary_cross_entropy(rng: Random, size: int) -> KernelArgs:
    """Two or three flat tensors → losses, or one number."""
    x = OperandSpec((rng.randint(1, 20 * size * size),), rng.choice([F16, F32]))
    kind = rng.choice(["none", "sum", "mean"])
    out = x if kind == "none" else OperandSpec((), x.dtype)
    inputs = (x,) * rng.randint(2, 3)
    return KernelArgs("BinaryCrossEntropy", inputs, (out,), (("reduction", kind),))


def fully_connection(rng: Random, size: int) -> KernelArgs:
    """Rows in fractals, or of an image, against weights in FRACTAL_Z."""
    dtype, wide = rng.choice([(F16, F16), (DType.INT8, I32)])
    c0, n1 = 16 * (dtype is DType.INT8) + 16, rng.randint(1, 12)
    if rng.random() < 0.5:
        m, c1, h, w = (rng.randint(1, n) for n in (90, 3, 6, 40))
        x, k = OperandSpec((m, c1 * c0, h, w), dtype, NC), c1 * c0 * h * w
        out = OperandSpec((m, 16 * n1), wide, NZ)
    else:
        b, m1, k = rng.randint(1, 9), rng.randint(1, 4), c0 * rng.randint(1, 400)
        x, out = (OperandSpec((b, 16 * m1, n), t, NZ) for n, t in ((k, dtype), (16 * n1, wide)))
    weights, bias = (
        OperandSpec((16 * n1, k, 1, 1), dtype, FZ),
        OperandSpec((1, 16 * n1, 1, 1), wide, NC),
    )
    return KernelArgs("FullyConnection", (x, weights, bias), (out,))


def _layer(rng: Random) -> tuple[list[OperandSpec], dict[str, object]]:
    """X, W, Y of a convolution in fp16 or fp32, and its window."""
    dtype, image, weights = rng.choice([(F16, NC, FZ), (F32, Layout.NC1HWC0_8, Layout.FRACTAL_Z_8)])
    k, stride, n, h = rng.randint(1, 4), rng.randint(1, 2), rng.randint(1, 6), rng.randint(5, 24)
    c, co, pad = 16 * rng.randint(1, 5), 16 * rng.randint(1, 6), rng.randint(0, k - 1)
    out = (h + 2 * pad - k) // stride + 1
    x, y = OperandSpec((n, c, h, h), dtype, image), OperandSpec((n, co, out, out), dtype, image)
    attrs = {"hf32": rng.randint(0, 1), "pads": (pad,) * 4, "strides": (stride, stride)}
    return [x, OperandSpec((co, c, k, k), dtype, weights), y], attrs


def fixp_conv(rng: Random, size: int) -> KernelArgs:
    """A convolution with its bias, or the gradient by its input."""
    (x, w, y), attrs = _layer(rng)
    if rng.random() < 0.5:
        attrs["input_size"] = x.shape[2:]
        return KernelArgs("Conv2DBackpropInput", (y, w), (x,), tuple(sorted(attrs.items())))
    bias = [OperandSpec(w.shape[:1], F32)] * rng.randint(0, 1)
    attrs["group"] = 1
    return KernelArgs("Conv", (x, w, *bias), (y,), tuple(sorted(attrs.items())))


def fixp_filter_grad(rng: Random, size: int) -> KernelArgs:
    """dY, X → dW."""
    (x, w, y), attrs = _layer(rng)
    attrs["kernel_shape"] = w.shape[2:]
    out = OperandSpec(w.shape, F32, w.layout)
    return KernelArgs("Conv2DBackpropFilter", (y, x), (out,), tuple(sorted(attrs.items())))


def iou(rng: Random, size: int) -> KernelArgs:
    """Boxes, ground truths → overlaps."""
    dtype, n, m = rng.choice([F16, F32]), rng.randint(1, 200), rng.randint(1, 100)
    boxes, truths, out = (OperandSpec(s, dtype) for s in ((n, 4), (m, 4), (m, n)))
    attrs = (("eps", rng.choice([0.1, 1.0])), ("mode", rng.choice(["iou", "iof"])))
    return KernelArgs("Iou", (boxes, truths), (out,), attrs)


MAKERS = {
    "Iou": iou,
    "FixpConv2D": fixp_conv,
    "FixpFilterGrad": fixp_filter_grad,
    "BinaryCrossEntropy": binary_cross_entropy,
    "FullyConnection": fully_connection,
    "InstanceNorm": instance_norm,
    "LpNorm": lp_norm,
    "TopKD": top_k,
}
