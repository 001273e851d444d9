"""Would two convolutions in one kernel, the tensor between them kept in L1, be faster?

npusim has no such kernel; this estimates one by the kernels that there are, and in its favour. A
core takes strips of the second image with all channels, so that what the first convolution makes of
them stays in its L1, in half of its room. Both run there as they do alone, without the store and
the load of the tensor between where those were their longest pipe, and with one launch less. The
price: rows at the edges of strips are computed twice (halo), every core reads all weights, and
work that had been shared by channels is shared by rows only.

    python benchmarks/depth_fusion.py [--out docs]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from tables import Sheet, publish

import npusim
from npusim.chip import ChipSpec
from npusim.ir import Graph
from npusim.machine.gm import hot
from npusim.machine.launch import LaunchResult, time_launch
from npusim.models.builder import GraphBuilder
from npusim.program.executable import KernelCall
from npusim.program.isa import Pipe
from npusim.program.kernel import KernelArgs, OperandSpec, get_kernel

ROOT = Path(__file__).resolve().parent.parent
CHIPS = ("ascend910a", "ascend910b2")
BATCHES = (1, 32)
BLOCKS = {56: 3, 28: 4, 14: 6, 7: 3}  #: bottlenecks of ResNet-50 by the side of their images
HEAD = """# Two convolutions in one kernel

Written by `python benchmarks/depth_fusion.py`; do not edit.

The compiler does not fuse convolutions in depth; the lists of CANN's passes name no such fusion
either. This page estimates, in its favour, what it would give, by the kernels that there are: a few
per cent of ResNet-50 at most (the last table). A core takes strips of the second image with all
channels; what the first convolution makes of them stays in its L1. Saved: one launch, and the store
and the load of the tensor between, where those are the longest pipe of their kernel; else they run
beside the cube at no cost. (That tensor is read from L2, not from HBM, wherever it fits.) Paid: the
rows at the edges of strips twice (halo), all weights in every core, and fewer cores where the
images have few rows.

* Where images are large and weights small (56², 28²) it could pay; most of that is the launch at
  batch 1, and the transfers at batch 32.
* Where weights are large it costs, at 7² always and at 14² at batch 1: 1.2 to 4.7 MB of them would
  pass through every core.
* A depthwise convolution runs on the vector unit. On the 910A it is so much longer than the
  transfers that little is left to save; on the 910B vector cores have no way into a cube core's L1.

"""


@dataclass(frozen=True)
class Pair:
    """Two convolutions of stride 1, each with ReLU, on square images; `depthwise`: the first."""

    name: str
    side: int
    channels: tuple[int, int, int]
    kernels: tuple[int, int]
    depthwise: bool = False

    def graph(self, batch: int) -> Graph:
        """As the compiler gets it."""
        first, middle, last = self.channels
        one, two = self.kernels
        g = GraphBuilder(self.name)
        x = g.input("x", (batch, first, self.side, self.side))
        a = g.weight("a", (middle, 1 if self.depthwise else first, one, one), 0.1)
        b = g.weight("b", (last, middle, two, two), 0.1)
        group = first if self.depthwise else 1
        y = g.node("Relu", "y", g.node("Conv", "one", x, a, pads=[one // 2] * 4, group=group))
        g.output(g.node("Relu", "z", g.node("Conv", "two", y, b, pads=[two // 2] * 4)))
        return g.finish()


PAIRS = tuple(
    Pair(f"ResNet-50 {side}²", side, channels, kernels)
    for side, width in ((56, 64), (28, 128), (14, 256), (7, 512))
    for channels, kernels in (
        ((4 * width, width, width), (1, 3)),
        ((width, width, 4 * width), (3, 1)),
    )
) + tuple(
    Pair(f"MobileNet {side}²", side, (n, n, out), (3, 1), True)
    for side, n, out in ((112, 32, 64), (56, 128, 128), (28, 256, 256), (14, 512, 512))
)


def _rows(spec: OperandSpec, images: int, rows: int) -> OperandSpec:
    _n, c, _, w = spec.shape
    return replace(spec, shape=(images, c, rows, w))


def _strips(args: KernelArgs, images: int, rows: int, out_rows: int) -> KernelArgs:
    """The convolution of strips, which carry their halo: no rows of zeros above and below."""
    x, out = args.inputs[0], args.outputs[0]
    assert x is not None
    attrs = {**dict(args.attrs), "pads": (0, args.attr("pads")[1], 0, args.attr("pads")[3])}
    return replace(
        args,
        inputs=(_rows(x, images, rows), *args.inputs[1:]),
        outputs=(_rows(out, images, out_rows),),
        attrs=tuple(sorted(attrs.items())),
    )


def _timed(core: ChipSpec, kernel: str, args: KernelArgs) -> LaunchResult | None:
    """The launch on one core, by its best tiling."""
    found = get_kernel(kernel)
    if found.refuse(args, core):
        return None
    tilings = list(found.tilings(args, core))
    if not tilings:
        return None
    plan = found.plan(args, core, min(tilings, key=lambda t: found.estimate(args, core, t)))
    return time_launch(core, kernel, args, plan, hot(plan))


def _without(r: LaunchResult, pipe: Pipe, cycles: float) -> float:
    """Cycles of a launch of which a pipe has so many fewer to do: the longest pipe decides."""
    busy = list(r.slowest.busy)
    longest = max(busy)
    busy[pipe] -= min(busy[pipe], int(cycles))
    return r.cycles - (longest - max(busy))


def _overhead(chip: ChipSpec, blocks: int) -> int:
    """Cycles of a task beside its kernel's."""
    scheduler = chip.scheduler
    return chip.cycles(scheduler.launch + scheduler.per_block * blocks + scheduler.gap)


@dataclass(frozen=True)
class Bound:
    """The least that a fused kernel takes, launch included, and by which strips."""

    cycles: float
    rows: int
    halo: float
    reason: str = ""


def bound(chip: ChipSpec, pair: Pair, batch: int, calls: list[KernelCall]) -> Bound:
    """Over all heights of a strip that L1 has room for."""
    if pair.depthwise and chip.cores.split:
        return Bound(0, 0, 0, "vector cores have no way into L1")
    one, two = (c.args for c in calls)
    more = pair.kernels[1] - 1
    best = Bound(float("inf"), 0, 0, "the strip does not fit L1")
    n = chip.cores.count
    core = npusim.load_chip(
        chip.name, ["cores.count=1", f"l2.bandwidth={chip.l2.bandwidth / n:.0f}B/s"]
    )
    for rows in sorted({-(-pair.side // k) for k in (1, 2, 3, 4, 6, 8, 14, 28, 56)}):
        between = (rows + more) * pair.side * pair.channels[1] * 2
        if between > chip.core.l1.size / 2:
            break
        strips = batch * -(-pair.side // rows)
        each = -(-strips // n)  # of a core
        tall = rows + more + pair.kernels[0] - 1
        a = _timed(core, calls[0].kernel, _strips(one, each, tall, rows + more))
        b = _timed(core, calls[1].kernel, _strips(two, each, rows + more, rows))
        if a is None or b is None:
            continue
        store = Pipe.FIXP if chip.core.fixp is not None else Pipe.MTE3
        first = _without(a, store, a.slowest.busy[store])
        second = _without(b, Pipe.MTE2, each * between / chip.core.mte2.rate)
        cycles = first + second + _overhead(chip, min(strips, n))
        if cycles < best.cycles:
            best = Bound(cycles, rows, (rows + more) / rows)
    return best


@dataclass(frozen=True)
class Estimate:
    """Cycles of a pair in two tasks, and what one would take."""

    pair: Pair
    chip: ChipSpec
    batch: int
    apart: float
    fused: Bound

    @staticmethod
    def of(chip: ChipSpec, pair: Pair, batch: int) -> Estimate:
        """Everything in L2, as between the layers of a net."""
        exe = npusim.compile_graph(pair.graph(batch), chip)
        calls = [t.call for t in exe.tasks if t.op_type == "Conv" and t.call is not None]
        apart = 0
        for c in calls:
            result = time_launch(chip, c.kernel, c.args, c.plan, hot(c.plan))
            apart += result.cycles + _overhead(chip, c.plan.block_dim)
        return Estimate(pair, chip, batch, apart, bound(chip, pair, batch, calls))

    @property
    def saved(self) -> float:
        """Cycles, none where two tasks are faster."""
        return max(0.0, self.apart - self.fused.cycles) if self.fused.rows else 0.0

    def row(self) -> list[str]:
        """Of the table."""
        one, two = self.pair.kernels
        names = f"{'dw ' if self.pair.depthwise else ''}{one}×{one}, {two}×{two}"
        channels = " → ".join(map(str, self.pair.channels))
        head = [self.pair.name, names, channels, self.chip.name, str(self.batch)]
        head.append(f"{self.apart:,.0f}")
        b = self.fused
        if not b.rows:
            return [*head, "·", "·", "·", b.reason]
        cycles, gain = f"{b.cycles:,.0f}", f"{self.apart / b.cycles:.2f}×"
        return [*head, str(b.rows), f"{b.halo:.2f}", cycles, gain]


def _net(chip: ChipSpec, batch: int, found: list[Estimate]) -> list[str]:
    """ResNet-50 with the better pair of every bottleneck, those of stride 2 taken as the others."""
    saved = 0.0
    for side, blocks in BLOCKS.items():
        pairs = [e for e in found if e.pair.side == side and not e.pair.depthwise]
        saved += blocks * max(e.saved for e in pairs)
    run = npusim.run(
        npusim.compile_graph(npusim.load_model("resnet50", batch=batch).graph, chip),
        chip, timing_only=True,
    )  # fmt: skip
    whole = run.timeline.total_cycles
    return [chip.name, str(batch), f"{whole:,}", f"{saved:,.0f}", f"{saved / whole:.1%}"]


def main() -> None:
    """Compute, print, write depth_fusion.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the page")
    args = parser.parse_args()
    columns = (
        "pair", "kernels", "channels", "chip", "batch", "apart", "rows", "halo", "fused", "gain",
    )  # fmt: skip
    rows, nets = [], []
    for batch in BATCHES:
        for chip in map(npusim.load_chip, CHIPS):
            found = [Estimate.of(chip, p, batch) for p in PAIRS]
            rows += [e.row() for e in found]
            nets.append(_net(chip, batch, found))
    sheets = [
        Sheet("ResNet-50", ("chip", "batch", "cycles", "saved at most", "share"), nets),
        Sheet("Pairs", columns, rows),
    ]
    page = args.out / "depth_fusion.md"
    publish(sheets, "", page, None)
    page.write_text(HEAD + page.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
