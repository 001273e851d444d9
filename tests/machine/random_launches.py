"""Random launches of every registered kernel, to hold the engines and the accounts against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import random_attention_launches
import random_cann_launches
import random_few_channels
import random_indexed_launches
import random_library_launches
import random_pool_launches
import random_training_launches

import npusim.kernels
import npusim.kernels.conv_vector
import npusim.kernels.matmul_vector  # noqa: F401
from npusim.chip.spec import ChipSpec
from npusim.ir import DType, EpilogueStep, Layout
from npusim.ops.cann_fused import FusedStep
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, get_kernel

F16, F32 = DType.FLOAT16, DType.FLOAT32
ND, NZ, NC, FZ = Layout.ND, Layout.FRACTAL_NZ, Layout.NC1HWC0, Layout.FRACTAL_Z
Maker = Callable[[Random, int], KernelArgs]

#: kernel → fn(random numbers, size: about the elements of a side)
MAKERS: dict[str, Maker] = {
    **random_training_launches.MAKERS,
    **random_pool_launches.MAKERS,
    **random_cann_launches.MAKERS,
    **random_indexed_launches.MAKERS,
    **random_library_launches.MAKERS,
    **random_attention_launches.MAKERS,
    **random_few_channels.MAKERS,
}


def _maker(name: str) -> Callable[[Maker], Maker]:
    def register(fn: Maker) -> Maker:
        MAKERS[name] = fn
        return fn

    return register


def launch(
    op: str,
    inputs: tuple[OperandSpec | None, ...],
    *outputs: OperandSpec,
    epilogue: tuple[EpilogueStep, ...] = (),
    **attrs: Any,
) -> KernelArgs:
    """A launch from operands and attributes."""
    return KernelArgs(op, inputs, outputs, tuple(sorted(attrs.items())), epilogue)


def random_plan(rng: Random, name: str, args: KernelArgs, chip: ChipSpec) -> Plan | None:
    """A plan with any of the kernel's tilings; None when the kernel refuses the launch."""
    kernel = get_kernel(name)
    if kernel.refuse(args, chip):
        return None
    tilings = list(kernel.tilings(args, chip))
    return kernel.plan(args, chip, rng.choice(tilings)) if tilings else None


# -- cube ----


def _product(rng: Random, size: int, dtype: DType, layouts: tuple[Layout, ...]) -> KernelArgs:
    m, k, n = (rng.randint(1, 2 * size) for _ in range(3))
    ta, tb = rng.randint(0, 1), rng.randint(0, 1)
    batch = rng.choice([(), (), (rng.randint(1, 6),)])
    if batch:
        ta = tb = 0
    a = OperandSpec((*batch, *((k, m) if ta else (m, k))), dtype, rng.choice(layouts))
    b_batch = rng.choice([(), batch])
    b = OperandSpec((*b_batch, *((n, k) if tb else (k, n))), dtype, rng.choice(layouts))
    y = OperandSpec((*batch, m, n), dtype, rng.choice(layouts))
    inputs: list[OperandSpec | None] = [a, b]
    steps = rng.choice([(), (EpilogueStep("Relu"),)])
    extra = rng.randint(0, 3)
    if extra:
        inputs.append(OperandSpec((n,), dtype) if extra != 2 else None)
    if extra > 1:
        inputs.append(y)
        steps = (EpilogueStep("Add", 3), *steps)
    if batch:
        return launch("MatMul", tuple(inputs), y, epilogue=steps)
    return launch("Gemm", tuple(inputs), y, epilogue=steps, transA=ta, transB=tb)


def _quantised(
    rng: Random, inputs: list[OperandSpec | None], co: int, shape: tuple[int, ...], layout: Layout
) -> tuple[tuple[OperandSpec | None, ...], OperandSpec, EpilogueStep]:
    """Inputs with a bias and scales, the result, and the step that makes it of int32 sums."""
    bias = OperandSpec((co,), DType.INT32) if rng.random() < 0.5 else None
    one = rng.random() < 0.4
    column = (co, 1, 1) if layout is NC else (co,)
    scales = None if one else OperandSpec(column, F32)
    to = rng.choice([DType.INT8, DType.UINT8, F16, F32])
    attrs: list[tuple[str, Any]] = [("to", to.value), *([("const1", 0.25)] if one else [])]
    narrow = to in (DType.INT8, DType.UINT8)
    attrs += [("offset", rng.randint(-9, 9))] if narrow else []
    op = "AscendRequant" if narrow else "AscendDequant"
    step = EpilogueStep(op, 3, tuple(sorted(attrs)))
    if one:
        step = EpilogueStep(op, None, step.attrs)
    return (*inputs, bias, scales), OperandSpec(shape, to, layout), step


def _product_of_bytes(rng: Random, size: int) -> KernelArgs:
    m, k, n = (rng.randint(1, 2 * size) for _ in range(3))
    a, b = OperandSpec((m, k), DType.INT8), OperandSpec((n, k), DType.INT8, rng.choice([ND, NZ]))
    inputs, y, step = _quantised(rng, [a, b], n, (m, n), ND)
    return launch("MatMulV2", inputs, y, epilogue=(step,), transB=1)


def _conv_of_bytes(rng: Random, size: int) -> KernelArgs:
    """Groups among them."""
    args = _conv(rng, size, DType.INT8, 4 * size)
    x, w = args.inputs[:2]
    assert x is not None and w is not None
    c, co, group = x.shape[1], w.shape[0], rng.choice([1, 1, 3])
    if group > 1:
        c, co = 32 * group * rng.randint(1, 2), 16 * group * rng.randint(1, 3)
    pair: list[OperandSpec | None] = [
        OperandSpec((x.shape[0], c, *x.shape[2:]), DType.INT8, NC),
        OperandSpec((co, c // group, *w.shape[2:]), DType.INT8, FZ),
    ]
    shape = (x.shape[0], co, *args.outputs[0].shape[2:])
    inputs, y, step = _quantised(rng, pair, co, shape, NC)
    attrs = {**dict(args.attrs), "group": group, "offset_x": rng.choice([0, 5])}
    return launch("Conv", inputs, y, epilogue=(step,), **attrs)


@_maker("MatMul")
def _matmul(rng: Random, size: int) -> KernelArgs:
    if rng.random() < 0.3:
        return _product_of_bytes(rng, size)
    return _product(rng, 2 * size, rng.choice([F16, F16, F32]), (ND, NZ))


@_maker("LibraryMatMul")
def _library_matmul(rng: Random, size: int) -> KernelArgs:
    lead = (rng.randint(2, 9),) if rng.random() < 0.3 else ()
    m, k, n = (16 * rng.randint(1, size // 2) for _ in range(3))
    ta = rng.randint(0, 1)
    a = OperandSpec((*lead, *((k, m) if ta else (m, k))), F16, NZ)
    b, y = OperandSpec((*lead, k, n), F16, NZ), OperandSpec((*lead, m, n), F16, NZ)
    bias = OperandSpec((n,), F16) if rng.random() < 0.5 else None
    steps: tuple[EpilogueStep, ...] = rng.choice([
        (), (EpilogueStep("Relu"),), (EpilogueStep("Add", 3),),
        (EpilogueStep("Gelu", None, (("approximate", "tanh"),)),),
    ])  # fmt: skip
    inputs = (a, b, bias, y if steps and steps[0].operand else None)
    kept = (y,) if steps and rng.random() < 0.5 else ()
    return launch("MatMul", inputs, y, *kept, epilogue=steps, transA=ta)


@_maker("MatMulEpilogue")
def _matmul_epilogue(rng: Random, size: int) -> KernelArgs:
    m, k, n = rng.randint(1, 30 * size), rng.randint(1, 2 * size), rng.randint(1, 30 * size)
    dtype = rng.choice([F16, DType.BFLOAT16])
    a, b, y = (OperandSpec(s, dtype) for s in ((m, k), (k, n), (m, n)))
    step = rng.choice(
        [EpilogueStep("Gelu", None, (("approximate", "none"),)), EpilogueStep("Tanh")]
    )
    return launch("MatMul", (a, b), y, epilogue=(step,))


@_maker("MatMulVector")
def _matmul_vector(rng: Random, size: int) -> KernelArgs:
    return _product(rng, size, F32, (ND,))


def _conv(rng: Random, size: int, dtype: DType, channels: int) -> KernelArgs:
    n, c, co = rng.randint(1, 3), rng.randint(1, channels), rng.randint(1, channels)
    h, w = rng.randint(4, size), rng.randint(4, size)
    kh, kw = rng.randint(1, 3), rng.randint(1, 3)
    sh, sw, pad = rng.randint(1, 2), rng.randint(1, 2), rng.randint(0, 1)
    ho, wo = (h + 2 * pad - kh) // sh + 1, (w + 2 * pad - kw) // sw + 1
    inputs: list[OperandSpec | None] = [
        OperandSpec((n, c, h, w), dtype, NC),
        OperandSpec((co, c, kh, kw), dtype, FZ),
    ]
    y = OperandSpec((n, co, ho, wo), dtype, NC)
    steps = rng.choice([(), (EpilogueStep("Relu"),)])
    extra = rng.randint(0, 3)
    if extra:
        inputs.append(OperandSpec((co,), dtype) if extra != 2 else None)
    if extra > 1:
        inputs.append(y)
        steps = (EpilogueStep("Add", 3), *steps)
    return launch(
        "Conv",
        tuple(inputs),
        y,
        epilogue=steps,
        group=1,
        strides=(sh, sw),
        pads=(pad,) * 4,
        dilations=(1, 1),
    )


@_maker("Conv2D")
def _conv2d(rng: Random, size: int) -> KernelArgs:
    if rng.random() < 0.4:
        return _conv_of_bytes(rng, size // 2)
    args = _conv(rng, size // 2, rng.choice([F16, F16, F32]), 2 * size)
    return random_few_channels.in_blocks_of_four(args)


@_maker("Conv2DEpilogue")
def _conv_epilogue(rng: Random, size: int) -> KernelArgs:
    args = _conv(rng, size, rng.choice([F16, F16, F32]), 3 * size)
    fused = {s.operand for s in args.epilogue}
    return args if 3 in fused else replace(args, epilogue=(EpilogueStep("Tanh"),))


@_maker("ConvVector")
def _conv_vector(rng: Random, size: int) -> KernelArgs:
    return _conv(rng, size // 2, F32, size)


def _layer(rng: Random, size: int) -> tuple[OperandSpec, OperandSpec, OperandSpec, dict[str, Any]]:
    """X, W, Y and the window of a convolution in fp16."""
    args = _conv(rng, size // 2, F16, 2 * size)
    x, w = args.inputs[:2]
    assert x is not None and w is not None
    window = {name: args.attr(name) for name in ("strides", "pads")}
    return x, w, args.outputs[0], window


@_maker("ConvConv")
def _conv_conv(rng: Random, size: int) -> KernelArgs:
    x, w, y, window = _layer(rng, size)
    n, mid, ho, wo = y.shape
    co = rng.randint(1, 2 * size)
    out = OperandSpec((n, co, ho, wo), F16, NC)
    biases = [rng.choice([None, OperandSpec((c,), F16)]) for c in (mid, co)]
    inputs = (x, w, biases[0], OperandSpec((co, mid, 1, 1), F16, FZ), biases[1])
    steps = rng.choice([(), (EpilogueStep("Relu"),)])
    if rng.random() < 0.5:
        inputs, steps = (*inputs, out), (EpilogueStep("Add", 5), *steps)
    return launch("ConvConv", inputs, out, epilogue=steps, relu=rng.random() < 0.5, **window)


@_maker("ConvConvEpilogue")
def _conv_conv_epilogue(rng: Random, size: int) -> KernelArgs:
    args = _conv_conv(rng, size)
    return replace(args, epilogue=(*args.epilogue, EpilogueStep("Tanh")))


@_maker("Conv2DBNTrainingReduce")
def _conv_bn(rng: Random, size: int) -> KernelArgs:
    x, w, y, window = _layer(rng, size)
    sums = OperandSpec((1, y.shape[1], 1, 1), F32, NC)
    return launch("FusionOp_Conv2D_BNTrainingReduce", (x, w), y, sums, sums, **window)


@_maker("Conv2DBackpropInput")
def _input_gradient(rng: Random, size: int) -> KernelArgs:
    x, w, y, window = _layer(rng, size)
    n, c, *image = x.shape
    bits = OperandSpec((n, -(-c // 16), *image, 2), DType.UINT8)
    op, fused = rng.choice([
        ("", ()), ("ReluGradV2", (bits,)), ("AddN_ReluGradV2", (x, bits)),
    ])  # fmt: skip
    op = f"FusionOp_Conv2DBackpropInput_{op}" if op else "Conv2DBackpropInput"
    return launch(op, (y, w, *fused), x, input_size=x.shape[2:], **window)


@_maker("Conv2DBackpropFilter")
def _filter_gradient(rng: Random, size: int) -> KernelArgs:
    x, w, y, window = _layer(rng, size)
    dw = OperandSpec(w.shape, F32, FZ)
    return launch("Conv2DBackpropFilter", (y, x), dw, kernel_shape=w.shape[2:], **window)


@_maker("FusedDbnDw")
def _bn_and_filter_gradient(rng: Random, size: int) -> KernelArgs:
    x, w, y, window = _layer(rng, size)
    stats = [OperandSpec((1, y.shape[1], 1, 1), F32, NC)] * 5
    dw = OperandSpec(w.shape, F32, FZ)
    return launch("FusedDbnDw", (x, y, y, *stats), y, dw, kernel_shape=w.shape[2:], **window)


# -- windows over images ----


@_maker("DepthwiseConv")
def _depthwise(rng: Random, size: int) -> KernelArgs:
    c, stride = rng.randint(1, 3 * size), rng.randint(1, 2)
    h, w = rng.randint(6, size), rng.randint(6, size)
    dtype = rng.choice([F16, F32])
    x = OperandSpec((rng.randint(1, 3), c, h, w), dtype, NC)
    y = OperandSpec((x.shape[0], c, (h - 1) // stride + 1, (w - 1) // stride + 1), dtype, NC)
    weights = OperandSpec((c, 1, 3, 3), dtype)
    bias = rng.choice([(), (OperandSpec((c,), dtype),)])
    return launch(
        "Conv",
        (x, weights, *bias),
        y,
        group=c,
        strides=(stride, stride),
        pads=(1,) * 4,
        dilations=(1, 1),
    )


@_maker("Pool")
def _pool(rng: Random, size: int) -> KernelArgs:
    n, c, dtype = rng.randint(1, 3), rng.randint(1, 3 * size), rng.choice([F16, F32])
    h, w = rng.randint(6, size), rng.randint(6, size)
    x = OperandSpec((n, c, h, w), dtype, NC)
    if rng.random() < 0.3:
        op = rng.choice(["GlobalMaxPool", "GlobalAveragePool"])
        return launch(op, (x,), OperandSpec((n, c, 1, 1), dtype, NC))
    k, stride = rng.randint(2, 3), rng.randint(1, 2)
    y = OperandSpec((n, c, (h - k) // stride + 1, (w - k) // stride + 1), dtype, NC)
    op = rng.choice(["MaxPool", "AveragePool"])
    return launch(op, (x,), y, kernel_shape=(k, k), strides=(stride, stride))


# -- vector ----


@_maker("Elementwise")
def _elementwise(rng: Random, size: int) -> KernelArgs:
    dtype = rng.choice([F16, F32])
    shape = tuple(rng.randint(1, size) for _ in range(rng.randint(1, 4)))
    y = OperandSpec(shape, dtype)
    if rng.random() < 0.3:
        op = rng.choice(["Relu", "Sigmoid", "Gelu"])
        return launch(op, (y,), y, **({"approximate": "none"} if op == "Gelu" else {}))
    other = OperandSpec(tuple(rng.choice([1, n, n]) for n in shape), dtype)
    return launch(rng.choice(["Add", "Mul", "Div"]), (y, other), y)


@_maker("Reduce")
def _reduce(rng: Random, size: int) -> KernelArgs:
    dtype = rng.choice([F16, F32])
    shape = tuple(rng.randint(1, 2 * size) for _ in range(rng.randint(1, 3)))
    axis = rng.randrange(len(shape))
    out = tuple(1 if i == axis else n for i, n in enumerate(shape))
    op = rng.choice(["ReduceSum", "ReduceMean", "ReduceMax"])
    return launch(op, (OperandSpec(shape, dtype),), OperandSpec(out, dtype), axes=(axis,),
                  keepdims=1)  # fmt: skip


def _rows(rng: Random, size: int) -> tuple[OperandSpec, DType]:
    dtype = rng.choice([F16, F32])
    return OperandSpec((rng.randint(1, 8 * size), rng.randint(2, 8 * size)), dtype), dtype


@_maker("Softmax")
def _softmax(rng: Random, size: int) -> KernelArgs:
    x, _ = _rows(rng, size)
    return launch("Softmax", (x,), x, axis=rng.randint(0, 1))


@_maker("ReduceElemwise")
def _reduce_elemwise(rng: Random, size: int) -> KernelArgs:
    x, _ = _rows(rng, size)
    other = OperandSpec(rng.choice([x.shape, (x.shape[0], 1), x.shape[1:]]), x.dtype)
    whole = rng.random() < 0.5
    axes = None if whole else (-1,)
    attrs = (("axis", -1),) if whole else (("keepdims", 1),)
    op = "Softmax" if whole else rng.choice(["ReduceSum", "ReduceMax", "ReduceL2"])
    steps = (FusedStep("Add", (0, 1)), FusedStep(op, (2,), attrs, axes), FusedStep("Abs", (3,)))
    out = x if whole else OperandSpec((x.shape[0], 1), x.dtype)
    return launch("ReduceElemwise", (x, other), out, steps=steps)


@_maker("FusedElemwise")
def _tree(rng: Random, size: int) -> KernelArgs:
    x, _ = _rows(rng, size)
    other = OperandSpec(rng.choice([x.shape, (x.shape[0], 1), x.shape[1:]]), x.dtype)
    op = rng.choice(["Sub", "Mul", "Max"])
    steps = (FusedStep(op, (0, 1)), FusedStep("Abs", (2,)), FusedStep("Add", (2, 3)))
    return launch("FusedElemwise", (x, other), x, steps=steps)


@_maker("Norm")
def _norm(rng: Random, size: int) -> KernelArgs:
    x, dtype = _rows(rng, size)
    vector = OperandSpec((x.shape[1],), dtype)
    return launch("LayerNormalization", (x, vector, vector), x, axis=-1, epsilon=1e-5)


@_maker("LRN")
def _lrn(rng: Random, size: int) -> KernelArgs:
    x = OperandSpec(
        (rng.randint(1, 3), rng.randint(1, size), rng.randint(1, size), rng.randint(1, size)),
        rng.choice([F16, F32]),
    )
    return launch("LRN", (x,), x, alpha=1e-4, beta=0.75, bias=1.0, size=5)


# -- movement ----


@_maker("Move")
def _move(rng: Random, size: int) -> KernelArgs:
    dtype = rng.choice([F16, F32])
    shape = [rng.randint(2, 2 * size) for _ in range(rng.randint(1, 3))]
    axis = rng.randrange(len(shape))
    x = OperandSpec(tuple(shape), dtype)
    kind = rng.choice(["Concat", "Slice", "Pad"])
    if kind == "Concat":
        out = OperandSpec((*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]), dtype)
        return launch("Concat", (x, x), out, axis=axis)
    if kind == "Slice":
        end = rng.randint(1, shape[axis])
        out = OperandSpec((*shape[:axis], end, *shape[axis + 1 :]), dtype)
        return launch("Slice", (x,), out, starts=(0,), ends=(end,), axes=(axis,), steps=(1,))
    before = [rng.randint(0, 5) for _ in shape]
    out = OperandSpec(tuple(n + b for n, b in zip(shape, before, strict=True)), dtype)
    return launch("Pad", (x,), out, mode="constant", pads=(*before, *[0] * len(shape)), value=0.0)


@_maker("BitMask")
def _bit_mask(rng: Random, size: int) -> KernelArgs:
    n = rng.randint(1, 20 * size * size)
    x, mask = OperandSpec((n,), rng.choice([F16, F32])), OperandSpec((-(-n // 8),), DType.UINT8)
    if rng.random() < 0.5:
        return launch("ReluGradV2", (x, mask), x)
    return launch("DropOutDoMask", (x, mask, OperandSpec((1,), x.dtype)), x)


@_maker("SumAll")
def _sum_all(rng: Random, size: int) -> KernelArgs:
    x = OperandSpec((rng.randint(1, 20 * size * size),), rng.choice([F16, F32]))
    kind = rng.choice(["ReduceSum", "ReduceMean", "SquareSumV1"])
    return launch(kind, (x,), OperandSpec((1,), x.dtype))


@_maker("Transpose")
def _transpose(rng: Random, size: int) -> KernelArgs:
    shape = [rng.randint(1, size) for _ in range(rng.randint(2, 4))]
    perm = rng.sample(range(len(shape)), len(shape))
    dtype = rng.choice([F16, F32])
    y = OperandSpec(tuple(shape[p] for p in perm), dtype)
    return launch("Transpose", (OperandSpec(tuple(shape), dtype),), y, perm=tuple(perm))


@_maker("TransData")
def _transdata(rng: Random, size: int) -> KernelArgs:
    dtype = rng.choice([F16, F32])
    n, c, h, w = (rng.randint(1, size) for _ in range(4))
    shape, layout = rng.choice([((n % 3 + 1, c, h, w), NC), ((8 * c, 8 * h), NZ)])
    sides = [OperandSpec(shape, dtype), OperandSpec(shape, dtype, layout)]
    rng.shuffle(sides)
    return launch("TransData", (sides[0],), sides[1])


@_maker("Gather")
def _gather(rng: Random, size: int) -> KernelArgs:
    table = OperandSpec((rng.randint(1, 8 * size), rng.randint(1, 4 * size)), F16)
    axis, n = rng.randint(0, 1), rng.randint(1, 4 * size)
    shape = (n, table.shape[1]) if axis == 0 else (table.shape[0], n)
    picks = OperandSpec((n,), DType.INT32)
    return launch("Gather", (table, picks), OperandSpec(shape, F16), axis=axis)


@_maker("PadV3")
def _pad_v3(rng: Random, size: int) -> KernelArgs:
    kind = rng.choice([F16, F32, DType.INT8])
    shape = [rng.randint(1, size) for _ in range(rng.randint(0, 2))]
    shape.append(rng.randint(1, rng.choice([size, 60 * size])))
    pads = [rng.randint(0, 3) for _ in range(2 * len(shape))]
    before, after = pads[: len(shape)], pads[len(shape) :]
    out = tuple(n + b + a for n, b, a in zip(shape, before, after, strict=True))
    x = OperandSpec(tuple(shape), kind)
    return launch("Pad", (x,), OperandSpec(out, kind), mode="constant", pads=tuple(pads))


@_maker("AtomicClean")
def _atomic_clean(rng: Random, size: int) -> KernelArgs:
    return launch("MemSet", (), OperandSpec((rng.randint(1, 4000 * size),), F32))


@_maker("FillBytes")
def _fill_bytes(rng: Random, size: int) -> KernelArgs:
    return launch("MemSet", (), OperandSpec((rng.randint(1, 8000 * size),), DType.INT8), value=1)


@_maker("OneHot")
def _one_hot(rng: Random, size: int) -> KernelArgs:
    n, depth = rng.randint(1, 4 * size), rng.randint(1, 40 * size)
    kind = rng.choice([F16, F32])
    value = OperandSpec((), kind)
    inputs: tuple[OperandSpec | None, ...] = (OperandSpec((n,), DType.INT32),)
    if rng.random() < 0.5:
        inputs = (*inputs, value, value)
    return launch("OneHot", inputs, OperandSpec((n, depth), kind))
