"""Which kernel runs an operator: candidates in order of preference, the first that accepts."""

from __future__ import annotations

import npusim.kernels  # noqa: F401  (says where kernels are)
from npusim.chip.spec import ChipSpec
from npusim.ir import DType, EpilogueStep, Graph, Layout, Node
from npusim.ir.layout import lies_as_nd
from npusim.ops import attributes, get_operator
from npusim.ops.cann_fused import HOLD_STEPS
from npusim.program.kernel import (
    NO_TILING,
    KernelArgs,
    OperandSpec,
    get_kernel,
    has_tiling,
    no_tiling,
)

#: Operator → kernels, best first. Elementwise operators need no entry.
CANDIDATES: dict[str, tuple[str, ...]] = {
    "Conv": ("Conv2D", "Conv2DEpilogue", "DepthwiseConv", "ConvVector"),
    "ConvConv": ("ConvConv", "ConvConvEpilogue"),
    "MatMul": ("MatMul", "MatMulEpilogue", "MatMulVector"),
    "MatMulV2": ("MatMul",),
    "Gemm": ("MatMul", "MatMulEpilogue", "MatMulVector"),
    "BatchNormalization": ("Elementwise",),
    "MaxPool": ("Pool",),
    "AveragePool": ("Pool",),
    "GlobalAveragePool": ("Pool", "Reduce"),
    "GlobalMaxPool": ("Pool",),
    "TransData": ("TransData", "TransDataC04"),
    "Transpose": ("Transpose",),
    "DepthToSpace": ("Transpose",),
    "SpaceToDepth": ("Transpose",),
    "Gather": ("Gather",),
    **dict.fromkeys(("GatherND", "GatherElements"), ("GatherND",)),
    "ScatterElements": ("ScatterElements",),
    **dict.fromkeys(("ScatterND", "TensorScatter"), ("ScatterRows", "ScatterElements")),
    **dict.fromkeys(("CumSum", "CumProd"), ("Cumulative",)),
    "DropOutDoMask": ("BitMask",),
    "OneHot": ("OneHot",),
    # ArgMax, ArgMin, Hardmax and TopK become what these kernels take: passes/selection.py.
    **dict.fromkeys(
        ("ArgMax", "ArgMin", "Hardmax", "ArgMaxWithValue", "ArgMinWithValue"), ("ArgValue",)
    ),
    "TopK": ("TopKD",),
    "TopKD": ("TopKD",),
    "LRN": ("LRN",),
    "RmsNorm": ("RmsNorm",),
    "AddRmsNorm": ("RmsNorm",),
    "FlashAttentionScore": ("FlashAttentionScore",),
    "FlashAttentionScoreGrad": ("FlashAttentionScoreGrad",),
    "ScaledMaskedSoftmax": ("ScaledMaskedSoftmax",),
    "ScaledMaskedSoftmaxGrad": ("ScaledMaskedSoftmaxGrad",),
    "ReduceElemwise": ("ReduceElemwise",),
    "FusedElemwise": ("FusedElemwise",),
    "Softmax": ("Softmax",),
    "LogSoftmax": ("Softmax",),
    **dict.fromkeys(
        (
            "LayerNormalization",
            "AddLayerNorm",
            "RMSNormalization",
            "GroupNormalization",
            "InstanceNormalization",
        ),
        ("Norm",),
    ),
    **dict.fromkeys(
        (
            "Concat",
            "Split",
            "Slice",
            "Pad",
            "Expand",
            "Tile",
            "Resize",
            "Reshape",
            "Flatten",
            "Squeeze",
            "Unsqueeze",
            "Identity",
            "Dropout",
            "BitCast",
        ),
        ("Move",),
    ),
    **dict.fromkeys(
        (
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSum",
            "ReduceLogSumExp",  # in steps: passes/factors.py
        ),
        ("Reduce",),
    ),
}

#: Inputs that are parameters when constant: they become attributes of the launch.
PARAMETERS: dict[str, dict[int, str]] = {
    "Slice": {1: "starts", 2: "ends", 3: "axes", 4: "steps"},
    "Pad": {1: "pads", 2: "value", 3: "axes"},
    "Split": {1: "split"},
    "Expand": {1: "shape"},
    "Tile": {1: "repeats"},
    "Resize": {1: "roi", 2: "scales", 3: "sizes"},
    "Reshape": {1: "shape"},
    "Squeeze": {1: "axes"},
    "Unsqueeze": {1: "axes"},
    "Dropout": {1: "ratio", 2: "training_mode"},
    "OneHot": {1: "depth", 2: "values"},
    "CumSum": {1: "axis"},
    "CumProd": {1: "axis"},
    **{op: {1: "axes"} for op in CANDIDATES if CANDIDATES[op] == ("Reduce",)},
}

#: Operators that only reinterpret an ND tensor: no task at all.
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")

#: … and all that can be free: their bytes stay as they are.
FREE = (*VIEWS, "TransData", "BitCast")


def moves_nothing(graph: Graph, node: Node) -> bool:
    """Whether a node's result is its operand's bytes, seen in another way.

    So are the views of an ND tensor, and a TransData of what lies in its layout as it does in ND
    (NC1HWC0 of whole blocks of channels where H = W = 1).
    """
    if node.epilogue or node.op_type not in FREE:
        return False
    source, result = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
    if source.dtype is not result.dtype and node.op_type != "BitCast":
        return False
    if node.op_type == "TransData":
        return all(lies_as_nd(t.shape, t.layout, t.dtype) for t in (source, result))
    return source.layout is Layout.ND


def kernel_of(op_type: str) -> str:
    """The preferred kernel of an operator; 'view' when it is free, '' where there is none."""
    if op_type in (*VIEWS, "BitCast"):
        return "view"
    if op_type in CANDIDATES:
        return CANDIDATES[op_type][0]
    return "Elementwise" if _vectorised(op_type) else ""


def _vectorised(op_type: str) -> bool:
    from npusim.kernels.elementwise import LOWER  # with all that register programs

    return get_operator(op_type).elementwise and op_type in LOWER


def kernel_args(graph: Graph, node: Node) -> KernelArgs:
    """The launch of a node: operand types and layouts, attributes, constant parameters."""
    attrs = {k: plain(v) for k, v in attributes(node).items() if v is not None}
    names = PARAMETERS.get(node.op_type, {})
    elementwise = get_operator(node.op_type, node.name).elementwise
    computed = elementwise or node.op_type in HOLD_STEPS
    inputs: list[OperandSpec | None] = []
    fused = {s.operand: s for s in node.epilogue if s.operand is not None}
    scalars: dict[int, float] = {}
    for i, name in enumerate(node.inputs):
        if not name:
            inputs.append(None)
            continue
        t, constant = graph.tensors[name], graph.constants.get(name)
        if constant is not None and i in names:
            value = constant.value()
            attrs[names[i]] = value.item() if names[i] == "value" else plain(value)
            inputs.append(None)
        elif constant is not None and t.type.size == 1 and (computed or i in fused):
            if i in fused:
                scalars[i] = constant.value().item()
            else:
                attrs[f"const{i}"] = constant.value().item()
            inputs.append(None)
        else:
            inputs.append(OperandSpec(t.shape, t.dtype, t.layout))
    if elementwise and all(x is None for x in inputs):
        # Everything is a scalar: keep the first as an operand.
        first = graph.tensors[node.inputs[0]]
        attrs.pop("const0", None)
        inputs[0] = OperandSpec(first.shape, first.dtype, first.layout)
    outputs = []
    for name in node.outputs:
        t = graph.tensors[name]
        outputs.append(OperandSpec(t.shape, t.dtype, t.layout))
    epilogue = tuple(_step(s, scalars) for s in node.epilogue)
    ordered = tuple(sorted(attrs.items()))
    return KernelArgs(node.op_type, tuple(inputs), tuple(outputs), ordered, epilogue)


def _step(step: EpilogueStep, scalars: dict[int, float]) -> EpilogueStep:
    """A step whose operand is a constant scalar takes it as attribute const1."""
    if step.operand not in scalars:
        return step
    attrs = (*step.attrs, ("const1", scalars[step.operand]))
    return EpilogueStep(step.op_type, None, attrs)


def plain(value: object) -> object:
    """Attribute values as hashable plain data."""
    if isinstance(value, DType):
        return value.value
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(plain(v) for v in value) if isinstance(value, list | tuple) else value


def select_kernel(args: KernelArgs, chip: ChipSpec, explain: bool = False) -> tuple[str, str]:
    """(kernel, '') or ('', why no AI Core kernel takes the launch).

    `explain`: where buffers are too small, say which sizes would do (that takes a search).
    """
    read = () if args.op_type == "Concat" else args.operands
    if any(0 in o.shape for o in (*read, *args.outputs) if o is not None):
        return "", "a tensor without elements"
    reasons = []
    names = CANDIDATES.get(args.op_type, ())
    if not names and get_operator(args.op_type).elementwise:
        names = ("Elementwise",)
    for name in names:
        kernel = get_kernel(name)
        reason = kernel.refuse(args, chip)
        if not reason and not has_tiling(name, args, chip):
            reason = no_tiling(name, args, chip) if explain else NO_TILING
        if not reason:
            return name, ""
        reasons.append(f"{name}: {reason}")
    return "", "; ".join(reasons) or "no AI Core kernel"
