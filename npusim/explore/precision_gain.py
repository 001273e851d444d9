"""How much faster a precision may be than fp32: what binds in fp32, and what 16 bits do to it.

Amdahl's law over the run in fp32, op by op: where the cube binds, a product takes as much less as
the cube is faster; where a transfer, a memory or the vector unit binds, half, as bytes and lanes
are; what the scheduler and the scalar unit need stays. It holds for the same kernels. A run can be
above it where 16 bits have kernels of their own (FlashAttention, activations beside the product),
and where their tensors fit into L2 and those of 32 bits do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npusim.chip.spec import ChipSpec
from npusim.compiler import CompileOptions, compile_graph
from npusim.ir import Graph
from npusim.machine.run import run_executable
from npusim.timeline import Timeline
from npusim.timeline.ablated import CUBE, FIXED, MOVES, VECTOR, PrecisionGain

#: What the page says above the rows.
TEXT = (
    "The cube of this chip has fp32. What binds the run in fp32 says how much a precision of 16 "
    "bits can give (Amdahl): where the cube binds, what its peaks are apart; where transfers, "
    "memory or the vector unit bind, half the bytes and twice the lanes; what it takes to launch "
    "stays. That is what the same kernels can gain at most. A net gains more where 16 bits have "
    "kernels of their own (FlashAttention, Gelu beside the product) and so fewer tasks, and where "
    "its tensors fit into L2 in 16 bits only. At batch 1 weights are moved once and used little: "
    "transfers and launches bind, and 3× is out of reach."
)
#: The nets on the page.
NETS = (
    ("resnet50", 1), ("resnet50", 64), ("resnet50", 256), ("bert-base", 1), ("bert-base", 32),
    ("bert-large", 1), ("bert-large", 16), ("bert-large", 32),
)  # fmt: skip
_KINDS = {"cube": CUBE, "vector": VECTOR, "scalar": FIXED, "aicpu": FIXED}


def _parts(timeline: Timeline) -> Iterator[tuple[str, int]]:
    """(what binds, cycles) of all that the run takes."""
    spent = 0
    for op in timeline.ops:
        limits = {name: share for name, share in op.limits.items() if name != "launch"}
        bound = max(limits, key=lambda name: limits[name], default="aicpu")
        yield FIXED, op.launch
        yield _KINDS.get(bound, MOVES), op.cycles - op.launch
        spent += op.cycles
    yield FIXED, timeline.total_cycles - spent


def precision_gain(
    graph: Graph, chip: ChipSpec, *, name: str, batch: int, precision: str = "fp16"
) -> PrecisionGain:
    """Time a model in fp32 and in a precision, and tell what fp32 is bound by.

    Raises:
        UnsupportedError: the model does not run on the chip.
    """
    runs = []
    for kind in ("fp32", precision):
        exe = compile_graph(graph, chip, CompileOptions(kind))
        runs.append(run_executable(exe, chip).timeline)
    slow, fast = runs
    cycles: Counter[str] = Counter()
    for what, n in _parts(slow):
        cycles[what] += n
    narrow = CompileOptions(precision).mode.narrow.value
    return PrecisionGain(
        model=name,
        batch=batch,
        chip=chip.name,
        precision=precision,
        slow_us=slow.total_us,
        fast_us=fast.total_us,
        slow_tasks=len(slow.ops),
        fast_tasks=len(fast.ops),
        cube_gain=chip.cube_flops(narrow) / chip.cube_flops("float32"),
        shares={what: n / slow.total_cycles for what, n in cycles.items()},
    )
