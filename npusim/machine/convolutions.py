"""Convolutions of an executable on the device layouts themselves, in pieces on threads."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from math import prod

import numpy as np

from npusim.ir import EpilogueStep, Layout
from npusim.ir.layout import c0_of, channels_in_blocks
from npusim.machine.arena import Arena
from npusim.machine.workers import Workers
from npusim.ops import attributes
from npusim.ops.blocked import Filters, conv_blocked, filters, filters_few
from npusim.ops.blocked_depthwise import DepthwiseFilters, depthwise_blocked, depthwise_filters
from npusim.ops.conv import BYTES, conv_window, spread_image
from npusim.ops.conv_depth import POINTWISE
from npusim.ops.parts import Pieces, Steps
from npusim.ops.window import Window
from npusim.program.executable import Executable, Task

#: Operators that run on the device layouts themselves, and which of their inputs are weights.
CONVOLUTIONS = {"Conv": (1,), "ConvConv": (1, 3)}
#: Layouts of image and weights of a convolution that is a matrix product.
DENSE = {
    (Layout.NC1HWC0, Layout.FRACTAL_Z),
    (Layout.NC1HWC0_C04, Layout.FRACTAL_Z_C04),
}
DEPTHWISE = (Layout.NC1HWC0, Layout.ND)  #: and of one with a filter per channel
AHEAD = 8  #: images up to which a convolution's pieces are made once and kept

Key = tuple[str, str]  #: weights and bias ("" where there is none), by name


class Convolutions:
    """Those of an executable's tasks that run on the device layouts.

    Life: `prepare` puts weights that are constants in the order of their arithmetic, and makes the
    pieces of convolutions of which nothing but values will change. `run` is called for each task.
    """

    def __init__(self, exe: Executable) -> None:
        self._exe = exe
        self._workers = Workers() if any(map(self.has, exe.tasks)) else None
        self._filters: dict[Key, Filters | DepthwiseFilters] = {}
        self._ahead: dict[str, Pieces] = {}

    def prepare(self, arena: Arena) -> None:
        """Make ready what does not change as long as the executable stays in this memory."""
        for task in filter(self.has, self._exe.tasks):
            for w in CONVOLUTIONS[task.node.op_type]:
                key = task.inputs[w], _bias(task, w + 1)
                if all(n in self._exe.constants for n in key if n):
                    self._filters[key] = self._arranged(key, arena)
            if self._can_be_made_ahead(task, arena):
                (self._ahead[task.name],) = self._stages(task, arena)

    def elsewhere(self) -> Convolutions:
        """The same for other memory."""
        other = copy(self)
        other._ahead = {}
        return other

    def has(self, task: Task) -> bool:
        """Whether the task is a convolution whose operands are in these layouts."""
        if task.node.op_type not in CONVOLUTIONS or task.compute_dtype in BYTES:
            return False
        x, w = (self._exe.buffers[n] for n in task.inputs[:2])
        one_each = (w.shape[0], w.shape[1]) == (x.shape[1], 1)
        return (x.layout, w.layout) in DENSE or ((x.layout, w.layout) == DEPTHWISE and one_each)

    def run(self, task: Task, arena: Arena) -> bool:
        """Compute a task if it is one of these, and tell whether it is."""
        known = self._ahead.get(task.name)
        if self._workers is None or (known is None and not self.has(task)):
            return False
        for pieces in [known] if known else self._stages(task, arena):
            self._workers.run(pieces.work, pieces.whole)
        return True

    def _can_be_made_ahead(self, task: Task, arena: Arena) -> bool:
        image, *others = (n for n in task.inputs if n)
        fused = {task.inputs[s.operand] for s in task.node.epilogue if s.operand is not None}
        out = arena.storage(task.outputs[0])
        return (
            task.node.op_type == "Conv"
            and len(out) <= AHEAD
            and not attributes(task.node).get("spread")
            and all(n in self._exe.constants for n in others if n not in fused)
            and not any(np.may_share_memory(arena.storage(n), out) for n in (image, *fused))
        )

    def _stages(self, task: Task, arena: Arena) -> Iterator[Pieces]:
        """A convolution; or two, and what is between them is rounded to the type of the result."""
        x, w = (self._exe.buffers[n] for n in task.inputs[:2])
        out = arena.storage(task.outputs[0])

        def read(name: str) -> np.ndarray:
            """An operand, which the pieces' results must not change."""
            found = arena.storage(name)
            return found.copy() if np.may_share_memory(found, out) else found

        steps = [
            (s, None if s.operand is None else read(task.inputs[s.operand]))
            for s in task.node.epilogue
        ]
        attrs = attributes(task.node)
        window = conv_window(x.shape[2:], w.shape[2:], attrs)
        image = spread_image(read(x.name), attrs.get("spread"))
        found = self._arranged((w.name, _bias(task, 2)), arena)
        if isinstance(found, DepthwiseFilters):
            yield depthwise_blocked(image, found, window, steps, out)
        elif task.node.op_type == "Conv":
            yield conv_blocked(image, found, window, steps, out, int(attrs["group"]))
        else:
            shape = (len(image), *window.out, -(-w.shape[0] // 16), 16)
            between = channels_in_blocks(np.empty(shape, out.dtype))
            relu: Steps = [(EpilogueStep("Relu"), None)] if attrs["relu"] else []
            yield conv_blocked(image, found, window, relu, between)
            found = self._arranged((task.inputs[3], _bias(task, 4)), arena)
            assert isinstance(found, Filters)
            yield conv_blocked(between, found, _pointwise(window), steps, out)

    def _arranged(self, key: Key, arena: Arena) -> Filters | DepthwiseFilters:
        """Filters in the order of their arithmetic."""
        known = self._filters.get(key)
        if known is not None:
            return known
        w, bias = self._exe.buffers[key[0]], arena.storage(key[1]) if key[1] else None
        stored = arena.storage(w.name)
        if w.layout is Layout.ND:
            return depthwise_filters(stored, c0_of(w.dtype), bias)
        arranged = filters_few if w.layout is Layout.FRACTAL_Z_C04 else filters
        return arranged(stored, prod(w.shape[2:]), w.shape[1], bias)


def _pointwise(window: Window) -> Window:
    """The window of 1 × 1 on what another gives."""
    return conv_window(window.out, (1, 1), POINTWISE)


def _bias(task: Task, i: int) -> str:
    """Input i, where there is one and it is no epilogue step's."""
    fused = {s.operand for s in task.node.epilogue}
    return task.inputs[i] if i < len(task.inputs) and i not in fused else ""
