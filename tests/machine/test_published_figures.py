"""Closed forms and measured times, as the chips ship: no calibration for any of these.

Measured figures are those of the README's table.
"""

from __future__ import annotations

import pytest

from npusim.api import compile_graph
from npusim.chip import load_chip
from npusim.chip.spec import ChipSpec
from npusim.compiler import CompileOptions
from npusim.ir import DType, Layout
from npusim.ir.layout import blocks
from npusim.machine.launch import time_launch
from npusim.machine.run import run_executable
from npusim.models.builder import GraphBuilder
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan
from npusim.timeline import OpRecord

F16 = DType.FLOAT16
ND, NZ = Layout.ND, Layout.FRACTAL_NZ


def product(m: int, k: int, n: int, layout: Layout) -> KernelArgs:
    """fp16 A (m, k) · B (k, n) in one layout."""
    a, b, c = (OperandSpec(s, F16, layout) for s in ((m, k), (k, n), (m, n)))
    return KernelArgs("MatMul", (a, b), (c,))


def on_device(chip: ChipSpec, op: str, *shapes: tuple[int, ...], level: int = 2) -> OpRecord:
    """One fp16 operator, compiled and run: launch overhead included."""
    g = GraphBuilder("one", F16)
    g.output(g.node(op, "op", *(g.input(f"x{i}", s) for i, s in enumerate(shapes))))
    options = CompileOptions(level=level)
    exe = compile_graph(g.finish(), chip, options=options)
    ops = run_executable(exe, chip).timeline.ops
    return next(o for o in ops if o.op_type == op)


def us(chip: ChipSpec, op: OpRecord) -> float:
    """Duration in microseconds."""
    return op.cycles / chip.clock * 1e6


def test_8192_cubed_is_bound_by_the_cube() -> None:
    """ascend910a: a core's blocks, and the head of each Mmad, within 2 %."""
    chip, args = load_chip("ascend910a"), product(8192, 8192, 8192, NZ)
    plan = choose_plan("MatMul", args, chip)
    t = plan.tiling
    rows, columns = blocks(512, t["bm"]), blocks(512, t["bn"])
    mmads = blocks(rows, t["m0"]) * blocks(columns, t["n0"]) * blocks(512, t["k0"])
    closed = rows * columns * 512 + mmads * chip.core.cube.head
    cycles = time_launch(chip, "MatMul", args, plan).cycles
    assert closed < cycles <= 1.02 * closed


def test_8192_cubed_on_the_910b2() -> None:
    """313 TFLOP/s measured (fp16, ND)."""
    chip = load_chip("ascend910b2")
    op = on_device(chip, "MatMul", (8192, 8192), (8192, 8192))
    assert 2 * 8192**3 / us(chip, op) / 1e6 == pytest.approx(313, rel=0.10)


def test_a_large_product_on_the_30_core_chip() -> None:
    """10240 × 768 × 21136 in fp16: 1516 µs measured."""
    chip = load_chip("ascend910-30c")
    assert us(chip, on_device(chip, "MatMul", (10240, 768), (768, 21136))) == pytest.approx(
        1516, rel=0.15
    )
    args = product(10240, 21136, 768, NZ)  # the same work with K = 21136
    cycles = time_launch(chip, "MatMul", args, choose_plan("MatMul", args, chip)).cycles
    assert cycles / chip.clock * 1e6 == pytest.approx(1516, rel=0.15)


@pytest.mark.parametrize("name", ["ascend910a", "ascend910-30c", "ascend910b2"])
def test_copying_a_gibibyte_takes_hbm_at_its_efficiency(name: str) -> None:
    """1 GiB in and 1 GiB out within 2 % of bandwidth × efficiency, less the bus's turns."""
    chip = load_chip(name)
    x = OperandSpec((2**29,), F16)
    args = KernelArgs("Relu", (x,), (x,))
    cycles = time_launch(chip, "Elementwise", args, choose_plan("Elementwise", args, chip)).cycles
    achieved = 2 * 2**30 / (cycles / chip.clock)
    closed = chip.hbm.bandwidth * chip.hbm.efficiency / (1 + (chip.hbm.turnaround or 0))
    assert achieved == pytest.approx(closed, rel=0.02)
    assert achieved <= chip.hbm.bandwidth * chip.hbm.efficiency


@pytest.mark.parametrize(("op", "inputs"), [("Relu", 1), ("Add", 2)])
def test_large_elementwise_on_the_30_core_chip(op: str, inputs: int) -> None:
    """0.985 to 1.3 TB/s measured, over the bytes of the operands."""
    chip = load_chip("ascend910-30c")
    record = on_device(chip, op, *[(16384, 8192)] * inputs)
    assert record.bound == "HBM"
    assert record.bytes_l2 == (inputs + 1) * 16384 * 8192 * 2
    assert 0.985 <= record.bytes_l2 / us(chip, record) / 1e6 <= 1.3


@pytest.mark.parametrize(
    ("shape", "block_dim", "measured"), [((1, 16), 1, 1.4), ((30, 1024), 30, 3.2)]
)
def test_the_smallest_kernels_on_the_30_core_chip(
    shape: tuple[int, int], block_dim: int, measured: float
) -> None:
    """1.3 µs (at their quickest) to 1.6 µs with 1 block, about 3.2 µs with 30.

    At O1, which takes as many blocks as CANN does.
    """
    chip = load_chip("ascend910-30c")
    op = on_device(chip, "Relu", shape, level=1)
    assert op.block_dim == block_dim
    assert us(chip, op) == pytest.approx(measured, rel=0.10)
