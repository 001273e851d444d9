"""How near simulated times and computed numbers are.

Times: against closed forms, and against chips that others measured; nothing is fitted here.
Numbers: against onnxruntime in fp32. Each row says which `npusim run` shows the same figure.

    python benchmarks/accuracy.py [--out benchmarks] [--readme README.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tables import Sheet, publish

import npusim
from npusim.api import RunResult
from npusim.chip import ChipSpec
from npusim.compiler import CompileOptions
from npusim.timeline import OpRecord

HERE = Path(__file__).resolve().parent

#: Operator times on a real 30-core, 0.9 GHz Ascend 910, by the project of that name.
HPM = "Huawei-Performance-Model, measured"


@dataclass(frozen=True)
class Run:
    """A timing-only run, and the command that shows it."""

    model: str
    chip: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    level: int = 2

    @property
    def command(self) -> str:
        """The same on the command line."""
        shapes = [f"--shape {n}={','.join(map(str, dims))}" for n, dims in self.shapes.items()]
        level = [f"--opt-level O{self.level}"] if self.level != 2 else []
        words = ["npusim run", self.model, f"--chip {self.chip}", *shapes, *level]
        return " ".join([*words, "--timing-only"])

    def result(self) -> RunResult:
        """Run it."""
        chip = npusim.load_chip(self.chip)
        model = npusim.load_model(self.model, shapes=self.shapes or None)
        options = CompileOptions(model.precision, level=self.level)
        exe = npusim.compile_graph(model.graph, chip, options=options)
        return npusim.run(exe, chip, timing_only=True)


@dataclass(frozen=True)
class Figure:
    """One simulated figure beside its reference.

    Attributes:
        low, high: the reference, a range when several were measured.
        tolerance: relative distance from the range that the project allows itself.
    """

    what: str
    command: str
    value: float
    unit: str
    low: float
    high: float
    tolerance: float
    source: str

    @property
    def off(self) -> float:
        """Relative distance from the reference; 0 inside its range."""
        if self.value < self.low:
            return self.value / self.low - 1
        return self.value / self.high - 1 if self.value > self.high else 0.0

    def row(self) -> list[str]:
        """As a row of the table."""
        low, high = f"{self.low:,.4g}", f"{self.high:,.4g}"
        reference = low if low == high else f"{low} to {high}"
        off = f"{self.off:+.1%}" if self.off else "within"
        met = "yes" if abs(self.off) <= self.tolerance else "NO"
        return [
            self.what, f"{self.value:,.4g} {self.unit}", f"{reference} {self.unit}", off,
            f"{self.tolerance:.0%}", met, self.source, f"`{self.command}`",
        ]  # fmt: skip


def main_op(result: RunResult) -> OpRecord:
    """The one operator of a model of one (not the layout changes around it)."""
    return max(result.timeline.ops, key=lambda op: op.flops)


def cube_bound_us(run: Run, chip: ChipSpec) -> float:
    """Time of an 8192³ MatMul if the cubes never wait: the Mmads of the kernel's own tiles."""
    exe = npusim.compile_graph(npusim.load_model(run.model).graph, chip)
    tile = next(t.call.plan.tiling for t in exe.tasks if t.call is not None and t.uses_cube)
    per_mmad = tile["m0"] * tile["n0"] * tile["k0"]
    blocks = (8192 // 16) ** 3 / chip.cores.count
    return blocks / per_mmad * (per_mmad + chip.core.cube.head) / chip.clock * 1e6


def closed_forms() -> list[Figure]:
    """Against arithmetic on the chip's own figures."""
    chip = npusim.load_chip("ascend910a")
    gemm, stream = Run("gemm-8192", chip.name), Run("relu-1gib", chip.name)
    product = gemm.result()
    cube = product.timeline.us(main_op(product).cycles)
    relu = stream.result()
    op = main_op(relu)
    rate = op.bytes_hbm / (op.cycles / chip.clock) / 1e12
    peak = chip.hbm.bandwidth * chip.hbm.efficiency / 1e12
    return [
        Figure(
            "8192³ fp16 MatMul", gemm.command, cube, "µs", *2 * (cube_bound_us(gemm, chip),), 0.02,
            "closed form: its Mmads, a cycle per 16³ block and the head, over 32 cubes",
        ),
        Figure(
            "1 GiB read, 1 GiB written", stream.command, rate, "TB/s", peak, peak, 0.02,
            f"closed form: {chip.hbm.bandwidth / 1e12:g} TB/s × efficiency "
            f"{chip.hbm.efficiency:g}",
        ),
    ]  # fmt: skip


def measured_chips() -> list[Figure]:
    """Against what others measured on real chips."""
    first, second = npusim.load_chip("ascend910-30c"), npusim.load_chip("ascend910b2")
    gemm, large = Run("gemm-hpm", first.name), Run("gemm-8192", second.name)
    stream = Run("relu-1gib", first.name)
    relu, matmul, product = stream.result(), gemm.result(), large.result()
    op = main_op(relu)
    moved = 2 * 2**30 / (op.cycles / first.clock) / 1e12
    us = matmul.timeline.us(main_op(matmul).cycles)
    cycles = main_op(product).cycles
    tflops = 2 * 8192**3 / (cycles / second.clock) / 1e12
    return [
        Figure("10240×768×21136 fp16 MatMul", gemm.command, us, "µs", 1516, 1516, 0.15, HPM),
        Figure("HBM-bound elementwise", stream.command, moved, "TB/s", 1.0, 1.3, 0, HPM),
        *(_smallest(first, blocks, us) for blocks, us in ((1, 1.2), (30, 3.2))),
        Figure(
            "8192³ fp16 MatMul", large.command, tflops, "TFLOP/s", 313, 313, 0.1,
            "FlagPerf, measured on a 910B2",
        ),
    ]  # fmt: skip


def _smallest(chip: ChipSpec, blocks: int, reference: float) -> Figure:
    """The quickest Relu that uses so many blocks: at O1, which takes as many as CANN does."""
    run = Run("relu", chip.name, {"x": (blocks, 16 if blocks == 1 else 1024)}, level=1)
    op = main_op(run.result())
    if op.block_dim != blocks:
        raise SystemExit(f"{run.command} ran in {op.block_dim} blocks, not in {blocks}")
    us = op.cycles / chip.clock * 1e6
    what = f"smallest kernel, {blocks} block{'s' if blocks > 1 else ''}"
    return Figure(what, run.command, us, "µs", reference, reference, 0.15, HPM)


def numerics() -> list[list[str]]:
    """Largest difference of every output from onnxruntime's, and the smallest cosine."""
    rows = []
    for model_name, chip_name, precision in (
        ("resnet50", "ascend910a", "fp32"),
        ("resnet50", "ascend910a", "fp16"),
        ("bert-base", "ascend910a", "fp32"),
        ("bert-base", "ascend910a", "fp16"),
        ("bert-base", "ascend910b2", "bf16"),
    ):
        chip = npusim.load_chip(chip_name)
        model = npusim.load_model(model_name, precision=precision)
        exe = npusim.compile_graph(model.graph, chip, precision=precision)
        inputs = npusim.make_inputs(model)
        done = npusim.check(model, exe, npusim.run(exe, chip, inputs=inputs), inputs)
        worst = max(c.max_rel_err for c in done.check.values())
        cosine = min(c.cosine for c in done.check.values())
        command = f"npusim run {model_name} --chip {chip_name} --precision {precision} --check"
        time = f"{done.timeline.total_us / 1e3:,.2f} ms"
        rows.append(
            [
                model_name,
                chip_name,
                precision,
                f"{worst:.1e}",
                f"{cosine:.6f}",
                time,
                f"`{command}`",
            ]
        )
    return rows


def main() -> None:
    """Compute, print, write accuracy.md."""
    parser = argparse.ArgumentParser(description="Simulated times beside their references.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of accuracy.md")
    parser.add_argument("--readme", type=Path, help="a README whose tables are renewed")
    args = parser.parse_args()
    columns = ["what", "npusim", "reference", "off", "allowed", "met", "source", "command"]
    figures = [figure.row() for figure in (*closed_forms(), *measured_chips())]
    heads = ["model", "chip", "precision", "max rel. error", "cosine", "simulated time", "command"]
    sheets = [Sheet("Accuracy", columns, figures), Sheet("Numerics", heads, numerics())]
    args.out.mkdir(parents=True, exist_ok=True)
    publish(sheets, "", args.out / "accuracy.md", args.readme)


if __name__ == "__main__":
    main()
