"""The memory plan: weights first, then activations with lifetimes, best fit, 512 B aligned."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.chip.spec import ChipSpec
from npusim.compiler.lower import Lowered
from npusim.errors import UnsupportedError
from npusim.ir import Graph
from npusim.program.executable import GM_ALIGN, Buffer, MemoryPlan


@dataclass(frozen=True)
class PlannedMemory:
    """Every tensor's place, and the sizes."""

    buffers: dict[str, Buffer]
    plan: MemoryPlan


def align(nbytes: int) -> int:
    """Rounded up to the GM alignment, at least one unit."""
    return max(1, -(-nbytes // GM_ALIGN)) * GM_ALIGN


class _FreeList:
    """Free gaps of an address space that grows as needed (offset → size)."""

    def __init__(self) -> None:
        self._gaps: dict[int, int] = {}
        self.top = 0

    def take(self, size: int) -> int:
        """The smallest gap that fits, else new space at the end (growing the last gap)."""
        fits = [(n, at) for at, n in self._gaps.items() if n >= size]
        if fits:
            n, at = min(fits)
            del self._gaps[at]
            if n > size:
                self._gaps[at + size] = n - size
            return at
        at = self.top
        for start, n in self._gaps.items():
            if start + n == self.top:
                at = start
                del self._gaps[start]
                break
        self.top = at + size
        return at

    def give(self, at: int, size: int) -> None:
        """Return a piece, joining its neighbours."""
        for start, n in list(self._gaps.items()):
            if start + n == at:
                at, size = start, size + n
                del self._gaps[start]
            elif at + size == start:
                size += n
                del self._gaps[start]
        self._gaps[at] = size


def plan_memory(graph: Graph, lowered: Lowered, chip: ChipSpec) -> PlannedMemory:
    """Place every tensor that a task touches, and the graph's inputs and outputs.

    Raises:
        UnsupportedError: the plan does not fit the chip's HBM.
    """
    root = lowered.alias
    named = {root.get(n, n) for t in lowered.tasks for n in (*t.inputs, *t.outputs) if n}
    named |= {root.get(n, n) for n in (*graph.inputs, *graph.outputs)}
    addresses: dict[str, int] = {}
    weights = 0
    for name in graph.constants:
        if name in named:
            addresses[name] = weights
            weights += align(graph.tensors[name].nbytes)
    activations = _place_activations(graph, lowered, addresses, weights)
    total = weights + activations
    if total > chip.hbm.size:
        raise UnsupportedError(
            f"{graph.name} needs {total / 2**30:.2f} GiB of device memory, {chip.name} has "
            f"{chip.hbm.size / 2**30:.2f} GiB: {(total - chip.hbm.size) / 2**20:.1f} MiB too much",
            f"weights ({weights / 2**30:.2f} GiB) and activations within hbm.size",
            "use a smaller --batch, a narrower --precision, or --set hbm.size=…",
        )
    buffers = {}
    for name in (*addresses, *root):
        base = root.get(name, name)
        if base in addresses:
            t = graph.tensors[name]
            buffers[name] = Buffer(name, addresses[base], t.shape, t.dtype, t.layout)
    return PlannedMemory(buffers, MemoryPlan(total, weights, activations, total))


def _place_activations(graph: Graph, lowered: Lowered, addresses: dict[str, int], base: int) -> int:
    root = lowered.alias
    last: dict[str, int] = {}
    for i, task in enumerate(lowered.tasks):
        for name in (*task.inputs, *task.outputs):
            if name:
                last[root.get(name, name)] = i
    forever = {root.get(o, o) for o in graph.outputs}
    free = _FreeList()

    def place(name: str) -> None:
        if name not in addresses:
            addresses[name] = base + free.take(align(graph.tensors[name].nbytes))

    for name in graph.inputs:
        place(root.get(name, name))
    for i, task in enumerate(lowered.tasks):
        for name in task.outputs:
            if name:
                place(root.get(name, name))
        used = (root.get(n, n) for n in (*task.inputs, *task.outputs) if n)
        for name in dict.fromkeys(used):
            if last[name] == i and name not in graph.constants and name not in forever:
                free.give(addresses[name] - base, align(graph.tensors[name].nbytes))
    return free.top
