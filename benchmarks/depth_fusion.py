"""Two convolutions in one kernel, the tensor between them kept in L1: what it gives, simulated.

Pairs whose second convolution is 1×1 are simulated, the kernel ConvConv against the two kernels.
Where its operands do not fit L1, an L1 is simulated into which they do. Where that kernel does not
apply the page estimates one, in its favour, by the kernels that there are. A core takes strips of
the second image with all channels, so that what the first convolution makes of them stays in its
L1, in half of its room. Both run there as they do alone, without the store and the load of the
tensor between where those were their longest pipe, and with one launch less. The price: rows at
the edges of strips are computed twice (halo), every core reads all weights, and work that had been
shared by channels is shared by rows only.

    python benchmarks/depth_fusion.py [--out docs]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from tables import Sheet, publish

import npusim
from npusim.chip import ChipSpec
from npusim.compiler.passes.conv_depth import NAME, joined
from npusim.compiler.pipeline import compile_watched
from npusim.compiler.select import kernel_args, select_kernel
from npusim.ir import Graph
from npusim.machine.gm import hot
from npusim.machine.launch import LaunchResult, time_launch
from npusim.models.builder import GraphBuilder
from npusim.program.executable import KernelCall
from npusim.program.isa import Pipe
from npusim.program.kernel import KernelArgs, OperandSpec, choose_plan, get_kernel

ROOT = Path(__file__).resolve().parent.parent
CHIPS = ("ascend910a", "ascend910b2")
BATCHES = (1, 32)
APART = npusim.CompileOptions(disabled=frozenset({NAME}))
HEAD = """# Two convolutions in one kernel

Written by `python benchmarks/depth_fusion.py`; do not edit.

`ConvDepthFusionPass` makes one kernel of a convolution and a 1×1 convolution behind it, where the
cost model says that it is faster than two; `--disable-pass ConvDepthFusionPass` leaves them apart.
The lists of CANN's passes name no such fusion, so a time to be held against a real chip's is one
without it. A core takes tiles of positions. What the first convolution makes of a tile goes from
L0C into L1, through UB on the 910A, by FIXP on the 910B, rounded as it would be stored; from there
the cube takes it for the second one. Both weights stay in L1. While a tile leaves L0C the cube
works on the next one.

Saved: one launch, and the store and the load of the tensor between; and the cube works on one
convolution while the other leaves L0C. Paid: all weights in every core, and fewer cores where the
images have few positions. Both ways compute the same bits.

* At batch 1 most of the gain is the launch.
* At batch 32 the first kernel of a pair is bound by the cube and MTE1, the second by what empties
  L0C: one kernel has both at work. Where that is nearly all of the time (56² on the 910A: bias,
  residual and ReLU of 256 channels) little is left to save; closer than 5 % pairs stay apart.
* On the 910B L1 is half as large: at 28² the weights leave room for small tiles only, which load
  all weights into L0B again and again. With many images that costs more than it saves.
* What FIXP cannot do behind the second convolution of the 910B, a residual, its vector cores do
  beside the cube (kernel ConvConvEpilogue).

"""
ROOM = "8 MiB"  #: an L1 into which all weights of ResNet-50 fit, pair by pair
SIMULATED = f"""
taken: whether the compiler takes the pair, or why it cannot. * marks what it would take with an L1
of {ROOM}: at 14² and 7² that would gain nothing either.
"""
WHY = """
Estimates, in favour of the fusion, where the kernel does not apply: a 3×3 convolution behind a 1×1
one needs a halo; a depthwise convolution runs on the vector unit, which on the 910B has no way into
a cube core's L1.
"""


@dataclass(frozen=True)
class Pair:
    """Two convolutions, each with ReLU, on square images; `depthwise`: the first.

    `stride`: of the first, whose images are that much larger than `side`; `residual`: an Add
    before the last ReLU.
    """

    name: str
    side: int
    channels: tuple[int, int, int]
    kernels: tuple[int, int]
    depthwise: bool = False
    residual: bool = False
    stride: int = 1

    def graph(self, batch: int) -> Graph:
        """As the compiler gets it."""
        first, middle, last = self.channels
        one, two = self.kernels
        g = GraphBuilder(self.name)
        side = self.side * self.stride
        x = g.input("x", (batch, first, side, side))
        a = g.weight("a", (middle, 1 if self.depthwise else first, one, one), 0.1)
        b = g.weight("b", (last, middle, two, two), 0.1)
        biases = g.weight("c", (middle,), 0.1), g.weight("d", (last,), 0.1)
        group, strides = first if self.depthwise else 1, [self.stride] * 2
        pads = [one // 2] * 4
        y = g.node("Conv", "one", x, a, biases[0], pads=pads, group=group, strides=strides)
        y = g.node("Relu", "y", y)
        y = g.node("Conv", "two", y, b, biases[1], pads=[two // 2] * 4)
        if self.residual:
            y = g.node("Add", "sum", y, g.input("r", g.shape(y)))
        g.output(g.node("Relu", "z", y))
        return g.finish()


STAGES = ((56, 64), (28, 128), (14, 256), (7, 512))
MEASURED = tuple(
    Pair(f"ResNet-50 {side}²", side, (n, n, 4 * n), (3, 1), residual=True, stride=stride)
    for side, n in STAGES
    for stride in ((1, 2) if side == 28 else (1,))
)
ESTIMATED = tuple(
    Pair(f"ResNet-50 {side}²", side, (4 * n, n, n), (1, 3)) for side, n in STAGES
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


def _calls(chip: ChipSpec, pair: Pair, batch: int) -> list[KernelCall]:
    """The two launches."""
    exe = npusim.compile_graph(pair.graph(batch), chip, options=APART)
    return [t.call for t in exe.tasks if t.op_type == "Conv" and t.call is not None]


def _joined(chip: ChipSpec, pair: Pair, batch: int) -> KernelArgs:
    """The one launch, whether or not the compiler would take it."""
    seen: list[Graph] = []
    compile_watched(pair.graph(batch), chip, APART, lambda graph, _report: seen.append(graph))
    first, second = (n for n in seen[-1].nodes if n.op_type == "Conv")
    return kernel_args(seen[-1], joined(first, second))


def _cycles(chip: ChipSpec, calls: list[KernelCall]) -> int:
    """As tasks one after the other, everything in L2, as between the layers of a net."""
    times = (time_launch(chip, c.kernel, c.args, c.plan, hot(c.plan)).cycles for c in calls)
    return sum(times) + sum(_overhead(chip, c.plan.block_dim) for c in calls)


def _named(pair: Pair, chip: ChipSpec, batch: int) -> list[str]:
    """First columns of a table."""
    one, two = pair.kernels
    names = f"{'dw ' if pair.depthwise else ''}{one}×{one}{' / 2' * (pair.stride > 1)}, {two}×{two}"
    channels = " → ".join(map(str, pair.channels))
    return [pair.name, names, channels, chip.name, str(batch)]


def measured(chip: ChipSpec, pair: Pair, batch: int) -> list[str]:
    """A row: the pair as two tasks and as one, and whether the compiler takes it."""
    apart, args = _cycles(chip, _calls(chip, pair, batch)), _joined(chip, pair, batch)
    row = [*_named(pair, chip, batch), f"{apart:,}"]
    kernel, why = select_kernel(args, chip)
    if not kernel:
        roomy = npusim.load_chip(chip.name, [f"core.l1.size={ROOM}"])
        kernel, _ = select_kernel(args, roomy)
        fused = _cycles(roomy, [_best(roomy, kernel, args)])
        why = why.split("; ")[-1].partition(": ")[2]
        return [*row, f"{fused:,} *", f"{apart / fused:.2f}×", why]
    fused = _cycles(chip, [_best(chip, kernel, args)])
    exe = npusim.compile_graph(pair.graph(batch), chip)
    taken = any(t.op_type == "ConvConv" for t in exe.tasks)
    return [*row, f"{fused:,}", f"{apart / fused:.2f}×", "yes" if taken else "no"]


def _best(chip: ChipSpec, kernel: str, args: KernelArgs) -> KernelCall:
    return KernelCall(kernel, args, choose_plan(kernel, args, chip))


def estimated(chip: ChipSpec, pair: Pair, batch: int) -> list[str]:
    """A row: the pair as two tasks, and what one would take at best."""
    calls = _calls(chip, pair, batch)
    apart, b = _cycles(chip, calls), bound(chip, pair, batch, calls)
    row = [*_named(pair, chip, batch), f"{apart:,}"]
    if not b.rows:
        return [*row, "·", "·", "·", b.reason]
    return [*row, str(b.rows), f"{b.halo:.2f}", f"{b.cycles:,.0f}", f"{apart / b.cycles:.2f}×"]


def _net(chip: ChipSpec, batch: int) -> list[str]:
    """A row: ResNet-50 with the pass and without."""
    graph = npusim.load_model("resnet50", batch=batch).graph
    found = []
    for options in (APART, npusim.CompileOptions()):
        exe = npusim.compile_graph(graph, chip, options=options)
        run = npusim.run(exe, chip, timing_only=True)
        found.append((run.timeline.total_cycles, len(exe.tasks)))
    (apart, before), (fused, after) = found
    tasks = f"{before} → {after}"
    return [chip.name, str(batch), tasks, f"{apart:,}", f"{fused:,}", f"{1 - fused / apart:.1%}"]


def main() -> None:
    """Compute, print, write depth_fusion.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the page")
    args = parser.parse_args()
    pair = ("pair", "kernels", "channels", "chip", "batch", "apart")
    cases = [(npusim.load_chip(chip), batch) for batch in BATCHES for chip in CHIPS]
    sheets = [
        Sheet(
            "ResNet-50",
            ("chip", "batch", "tasks", "apart", "fused", "saved"),
            [_net(*case) for case in cases],
        ),
        Sheet(
            "Pairs, simulated",
            (*pair, "fused", "gain", "taken"),
            [measured(chip, p, batch) for chip, batch in cases for p in MEASURED],
        ),
        Sheet(
            "Pairs, estimated",
            (*pair, "rows", "halo", "fused at best", "gain"),
            [estimated(chip, p, batch) for chip, batch in cases for p in ESTIMATED],
        ),
    ]
    page = args.out / "depth_fusion.md"
    publish(sheets, "", page, None)
    text = page.read_text(encoding="utf-8")
    for sheet, note in zip(sheets[1:], (SIMULATED, WHY), strict=True):
        text = text.replace(f"## {sheet.title}\n", f"## {sheet.title}\n{note}")
    page.write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    main()
