"""Quantised operators as the cube and the vector unit run them."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import CHIPS, check_run, compiled, count, graph_of, kinds, passed, same_values

from npusim import api
from npusim.compiler import CompileOptions
from npusim.compiler.passes.conv1d import expand_conv1d
from npusim.compiler.passes.qdq import fuse_qdq
from npusim.compiler.passes.quantized import lower_quantized
from npusim.frontends.reference import evaluate
from npusim.ir import DType, Graph
from npusim.models.builder import GraphBuilder
from npusim.ops.conv import BYTES
from npusim.program.executable import TaskKind

RNG = np.random.default_rng(0)


def _dynamic(k: int = 600) -> tuple[Graph, dict[str, np.ndarray]]:
    """A product as onnxruntime quantises it: sums far beyond fp16, then scales."""

    def write(g: GraphBuilder) -> str:
        x, zero = g.input("x", (40, k), DType.UINT8), g.input("zero", (), DType.UINT8)
        w = g.constant("w", RNG.integers(-128, 128, (k, 50)), DType.INT8)
        scale = g.node("Mul", "scale", g.input("s", ()), g.constant("ws", np.float32(1e-3)))
        sums = g.node("MatMulInteger", "sums", x, w, zero)
        return g.node("Mul", "y", g.node("Cast", "real", sums, to="float32"), scale)

    inputs = {"x": RNG.integers(100, 256, (40, k)).astype(np.uint8),
              "zero": np.uint8([3]).reshape(()), "s": np.float32([0.02]).reshape(())}  # fmt: skip
    return graph_of(write), inputs


@pytest.mark.parametrize("chip", CHIPS)
def test_sums_do_not_saturate_in_fp16(chip: str) -> None:
    graph, inputs = _dynamic()
    assert np.abs(evaluate(graph, inputs)["y"]).max() / 2e-5 > 1e5  # what fp16 has no room for
    exe = check_run(graph, chip, "fp16", tile_level=True, inputs=inputs)
    assert count(exe, "AscendDequant") == 1
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)


def test_known_zero_points_are_a_bias() -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (40, 70), DType.INT8)
        w = g.constant("w", RNG.integers(-128, 128, (70, 50)), DType.INT8)
        return g.node("MatMulInteger", "y", x, w, g.constant("z", 3, DType.INT8))

    graph = graph_of(write)
    same_values(graph, passed(lower_quantized, graph), rtol=0)
    exe = compiled(graph)
    assert kinds(exe) == ["MatMulV2"] and len(exe.tasks[0].inputs) == 3


def test_there_and_back_fuses() -> None:
    def write(g: GraphBuilder) -> str:
        scale, zero = g.constant("s", np.float32(0.05)), g.constant("z", 7, DType.INT8)
        q = g.node("QuantizeLinear", "q", g.input("x", (64, 100)), scale, zero)
        return g.node("Relu", "y", g.node("DequantizeLinear", "d", q, scale, zero))

    for chip in CHIPS:
        exe = check_run(graph_of(write), chip, "fp32", tile_level=True)
        assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)


@pytest.mark.parametrize(
    "attrs", [{"pads": [2, 1]}, {"strides": [3], "dilations": [2]}, {"auto_pad": "SAME_LOWER"}]
)
def test_lines_are_images_of_one_row(attrs: dict[str, object]) -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, 20, 33))
        w, b = g.weight("w", (40, 20, 4), 0.2), g.weight("b", (40,), 0.3)
        return g.node("Conv", "y", x, w, b, **attrs)

    graph = graph_of(write)
    same_values(graph, passed(expand_conv1d, graph))
    exe = check_run(graph, "ascend910a", "fp16", tile_level=True)
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)


def test_int8_is_twice_as_fast() -> None:
    """A large product: the cube's peak is twice that of fp16, and so are its operands' rates."""
    for chip in ("ascend910a", "ascend910b2"):
        cycles = []
        for dtype in (DType.INT8, DType.FLOAT16):

            def write(g: GraphBuilder, dtype: DType = dtype) -> str:
                a = g.input("a", (4096, 4096), dtype)
                b = g.constant("b", np.ones((4096, 4096), dtype.np), dtype)
                op = "MatMulV2" if dtype is DType.INT8 else "Gemm"
                return g.node(op, "y", a, b, transB=1)

            result = api.run(compiled(graph_of(write), chip), CHIPS[chip], timing_only=True)
            op = result.timeline.ops[-1]
            cycles.append(op.end - op.start)
        assert 1.6 < cycles[1] / cycles[0] <= 2.0, (chip, cycles)


SHAPES = {
    "depthwise": ((2, 64, 9, 8), (64, 1, 3, 3), 64, {"pads": [1, 0, 1, 2]}),
    "strided": ((1, 96, 9, 8), (96, 1, 3, 3), 96, {"pads": [0, 1, 1, 1], "strides": [2, 2]}),
    "few channels": ((2, 20, 9, 8), (20, 1, 3, 3), 20, {}),
    "two filters": ((1, 32, 7, 7), (64, 1, 3, 3), 32, {}),
    "grouped": ((2, 24, 6, 5), (36, 6, 3, 3), 4, {}),
    "two halves": ((1, 128, 6, 5), (64, 64, 1, 3), 2, {"dilations": [1, 2]}),
    "line": ((2, 20, 33), (40, 20, 4), 1, {"pads": [2, 1]}),
    "depthwise line": ((2, 64, 33), (64, 1, 3), 64, {"strides": [2]}),
}
#: Types of image and filters, their zero points, whether those are per channel, or inputs.
ZEROS = [
    (np.uint8, np.int8, 3, 0, ""),
    (np.int8, np.int8, 0, 5, "per channel"),
    (np.uint8, np.uint8, 130, 127, "per channel"),
    (np.int8, np.uint8, -7, 128, ""),
    (np.uint8, np.int8, 9, 0, "inputs"),
]


@pytest.mark.parametrize("op_type", ["QLinearConv", "ConvInteger"])
@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("zeros", range(len(ZEROS)))
def test_convolutions_of_bytes_run_on_cores(op_type: str, case: str, zeros: int) -> None:
    """Groups, lines, zero points of both sides: the sums are exact."""
    xs, ws, group, attrs = SHAPES[case]
    of_x, of_w, xz, wz, how = ZEROS[zeros]
    rng = np.random.default_rng(zeros)
    x, w = (rng.integers(np.iinfo(t).min, np.iinfo(t).max + 1, s).astype(t)
            for t, s in ((of_x, xs), (of_w, ws)))  # fmt: skip
    inputs = {"x": x} | ({"xz": np.array(xz, of_x)} if how == "inputs" else {})

    def write(g: GraphBuilder) -> str:
        image = g.input("x", xs, DType.of(x.dtype))
        filters = g.constant("w", w, DType.of(w.dtype))
        wide = np.full(ws[0], wz) if how == "per channel" else np.array(wz)
        w_zero = g.constant("wz", wide, DType.of(w.dtype))
        known = how != "inputs"
        x_zero = (
            g.constant("xz", np.array(xz), DType.of(x.dtype))
            if known
            else g.input("xz", (), DType.of(x.dtype))
        )
        if op_type == "ConvInteger":
            return g.node(op_type, "y", image, filters, x_zero, w_zero, group=group, **attrs)
        scales = [g.constant("ws", rng.uniform(0.001, 0.01, ws[0]).astype(np.float32))]
        scales += [g.constant(n, np.float32(v)) for n, v in (("xs", 0.02), ("ys", 0.5))]
        bias = g.constant("b", rng.integers(-999, 999, ws[0]), DType.INT32)
        operands = (image, scales[1], x_zero, filters, scales[0], w_zero, scales[2],
                    g.constant("yz", np.array(7), DType.UINT8), bias)  # fmt: skip
        return g.node(op_type, "y", *operands, group=group, **attrs)

    chip = ("toy", "ascend910a", "ascend910b2")[zeros % 3]
    graph = graph_of(write)
    exe = compiled(graph, chip)
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)
    want = evaluate(graph, inputs)["y"]
    for tile in (False, True):
        found = api.run(exe, CHIPS[chip], inputs=inputs, tile_level=tile).outputs["y"]
        if op_type == "ConvInteger":
            np.testing.assert_array_equal(found, want)
        else:  # a unit, where the scaled sum lay half-way
            assert np.abs(found.astype(int) - want).max() <= 1


QUANT_PASSES = frozenset({"TbeConvDequantFusionPass", "BatchMatMulDequantElemwiseFusionPass"})


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("channels", [16, 33, 48, 64, 352])
@pytest.mark.parametrize("several", [True, False])
def test_requantised_on_the_way_out_bit_for_bit(chip: str, channels: int, several: bool) -> None:
    """As the operator apart, on both levels; FIXP, where it keeps scales and pairs of blocks."""
    rng = np.random.default_rng(channels)
    powers = 2.0 ** rng.integers(-13, -8, channels if several else 1)  # what FIXP keeps
    to = DType.INT8 if several else DType.UINT8

    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, 70, 7, 9), DType.INT8)
        w = g.constant("w", rng.integers(-128, 128, (channels, 70, 3, 3)), DType.INT8)
        ws = g.constant("ws", powers.astype(np.float32) if several else np.float32(powers[0]))
        bias = g.constant("b", rng.integers(-999, 999, channels), DType.INT32)
        zero = g.constant("z", 0, DType.INT8)
        one = g.constant("one", np.float32(1))
        return g.node("QLinearConv", "y", x, one, zero, w, ws, zero, one,
                      g.constant("yz", np.array(7), to), bias, pads=[1] * 4)  # fmt: skip

    _same_apart(graph_of(write), chip, "Conv", channels % 32 in (0, 17) or chip != "ascend910b2")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("to", ["int8", "float16", "float32"])
def test_products_leave_quantised_bit_for_bit(chip: str, to: str) -> None:
    rng = np.random.default_rng(3)

    def write(g: GraphBuilder) -> str:
        a = g.input("a", (45, 70), DType.INT8)
        b = g.constant("w", rng.integers(-128, 128, (70, 50)), DType.INT8)
        zero = g.constant("z", 0, DType.INT8)
        scales = g.constant("s", (2.0 ** rng.integers(-12, -8, 50)).astype(np.float32))
        one = g.constant("one", np.float32(1))
        if to == "int8":
            return g.node("QLinearMatMul", "y", a, one, zero, b, scales, zero, one,
                          g.constant("yz", -3, DType.INT8))  # fmt: skip
        sums = g.node("MatMulInteger", "sums", a, b)
        return g.node("Mul", "y", g.node("Cast", "real", sums, to="float32"), scales)

    precision = "fp32" if to == "float32" else "fp16"
    _same_apart(graph_of(write), chip, "MatMulV2", True, precision)


def _same_apart(
    graph: Graph, chip: str, op_type: str, joins: bool, precision: str = "fp16"
) -> None:
    """The same bytes whether the product's kernel quantises or another does."""
    (name,) = graph.inputs
    values = np.random.default_rng(1).integers(-128, 128, graph.tensors[name].shape)
    inputs, found = {name: values.astype(np.int8)}, []
    for off in (QUANT_PASSES, frozenset()):
        options = CompileOptions(precision, disabled=off)
        exe = api.compile_graph(graph, CHIPS[chip], options=options)
        assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)
        joined = any(t.op_type == op_type and t.node.epilogue for t in exe.tasks)
        assert joined is (joins and not off)
        for tile in (False, True):
            found.append(api.run(exe, CHIPS[chip], inputs=inputs, tile_level=tile).outputs["y"])
    assert np.unique(found[0]).size > 20
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_fixp_leaves_scales_that_it_cannot_keep() -> None:
    def write(g: GraphBuilder) -> str:
        a = g.input("a", (45, 70), DType.INT8)
        b = g.constant("w", RNG.integers(-128, 128, (70, 50)), DType.INT8)
        zero, one = g.constant("z", 0, DType.INT8), g.constant("one", np.float32(1))
        return g.node("QLinearMatMul", "y", a, one, zero, b, g.constant("s", np.float32(0.003)),
                      zero, one, zero)  # fmt: skip

    for chip, joins in (("ascend910a", True), ("ascend910b2", False)):
        _same_apart(graph_of(write), chip, "MatMulV2", joins)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("chip", CHIPS)
def test_maxima_of_bytes_run_on_cores(dtype: type, chip: str) -> None:
    def write(g: GraphBuilder) -> str:
        x = g.input("x", (1, 40, 9, 8), DType.of(np.dtype(dtype)))
        return g.node("MaxPool", "y", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    limits = np.iinfo(dtype)
    x = RNG.integers(limits.min, limits.max + 1, (1, 40, 9, 8)).astype(dtype)
    exe = compiled(graph_of(write), chip)
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)
    found = api.run(exe, CHIPS[chip], inputs={"x": x}, tile_level=True).outputs["y"]
    np.testing.assert_array_equal(found, evaluate(graph_of(write), {"x": x})["y"])


def _qdq(op_type: str) -> Graph:
    """A product of dequantised tensors, quantised again."""
    conv = op_type == "Conv"

    def write(g: GraphBuilder) -> str:
        x = g.input("x", (2, 20, 9, 8) if conv else (40, 70), DType.UINT8)
        shape = {"Conv": (24, 20, 3, 3), "Gemm": (24, 70), "MatMul": (70, 24)}[op_type]
        weights = g.constant("w", RNG.integers(-128, 128, shape), DType.INT8)
        axis = 1 if op_type == "MatMul" else 0
        real = g.node("DequantizeLinear", "real", x, g.constant("xs", 0.02),
                      g.constant("xz", 130, DType.UINT8))  # fmt: skip
        w = g.node("DequantizeLinear", "wide", weights,
                   g.constant("ws", RNG.uniform(0.001, 0.02, 24)),
                   g.constant("wz", np.zeros(24), DType.INT8), axis=axis)  # fmt: skip
        attrs: dict[str, object] = {"Conv": {"pads": [1, 0, 1, 2]}, "Gemm": {"transB": 1}}.get(
            op_type, {}
        )
        bias = () if op_type == "MatMul" else (g.weight("b", (24,), 0.3),)
        y = g.node("Relu", "relu", g.node(op_type, "product", real, w, *bias, **attrs))
        return g.node("QuantizeLinear", "y", y, g.constant("ys", 0.05),
                      g.constant("yz", 3, DType.UINT8))  # fmt: skip

    return graph_of(write)


@pytest.mark.parametrize("op_type", ["Conv", "Gemm", "MatMul"])
@pytest.mark.parametrize("chip", CHIPS)
def test_products_of_real_numbers_that_were_bytes(op_type: str, chip: str) -> None:
    graph = _qdq(op_type)
    integers = passed(fuse_qdq, graph)
    assert count(integers, op_type) == 0
    same_values(graph, integers, rtol=0.01)  # a unit of 8 bits, where it lay half-way
    rng = np.random.default_rng(0)
    shape = graph.tensors["x"].shape
    inputs = {"x": rng.integers(0, 256, shape).astype(np.uint8)}
    exe = compiled(graph, chip)
    tile, whole = (
        api.run(exe, CHIPS[chip], inputs=inputs, tile_level=t).outputs["y"] for t in (True, False)
    )
    np.testing.assert_array_equal(tile, whole)
    want = evaluate(graph, inputs)["y"].astype(int)
    assert np.abs(tile.astype(int) - want).max() <= 1
    assert all(t.kind is TaskKind.AI_CORE for t in exe.tasks)
    assert any(t.uses_cube and t.compute_dtype in BYTES for t in exe.tasks)
