"""Operator-level execution: numpy on whole tensors, at their planned addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from math import prod

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.ir import EpilogueStep, Layout, TensorType
from npusim.ir.layout import c0_of
from npusim.machine.arena import Arena
from npusim.machine.launch import run_tile_level
from npusim.machine.workers import Workers
from npusim.ops import attributes, compute_node, get_operator
from npusim.ops.blocked import Steps, conv_blocked, gemm_weights, gemm_weights_few
from npusim.ops.blocked_depthwise import depthwise_blocked, depthwise_taps
from npusim.ops.conv import BYTES, conv_window, spread_image
from npusim.ops.conv_depth import POINTWISE
from npusim.ops.window import Window
from npusim.program.executable import Buffer, Executable, Task

Observer = Callable[[Task, Arena], None]
Seen = dict[str, np.ndarray]  #: operand → its bytes at some time
#: Operators that run on the device layouts themselves, and which of their inputs are weights.
CONVOLUTIONS = {"Conv": (1,), "ConvConv": (1, 3)}
#: Layouts of image and weights of a convolution that is a matrix product.
DENSE = {
    (Layout.NC1HWC0, Layout.FRACTAL_Z),
    (Layout.NC1HWC0_C04, Layout.FRACTAL_Z_C04),
}


class FunctionalExecutor:
    """Executes tasks on an arena when the timeline says they complete.

    Args:
        tile_level: run AI Core kernels instruction by instruction on real bytes.
        observe: called after each task (to compare intermediate tensors).
    """

    def __init__(
        self,
        exe: Executable,
        chip: ChipSpec,
        arena: Arena,
        tile_level: bool = False,
        observe: Observer | None = None,
    ) -> None:
        self._exe, self._chip, self._arena = exe, chip, arena
        self._tile_level = tile_level
        self._observe = observe
        self._workers = Workers()
        # Constant convolution weights in the order of their arithmetic, made once.
        self._weights: dict[str, np.ndarray] = {}
        if not tile_level:
            self._prepare_weights()

    def at(
        self, moved: Mapping[str, np.ndarray], data: np.ndarray | None = None
    ) -> FunctionalExecutor:
        """The same in other memory, as `Arena.at`."""
        other = copy(self)
        other._arena = self._arena.at(moved, data)
        return other

    def look(self, task: Task) -> Seen:
        """The operands as they are when a task starts; constants, which stay, left out."""
        names = {n for n in task.inputs if n and n not in self._exe.constants}
        return {n: self._arena.raw(n).copy() for n in sorted(names)}

    def execute(self, task: Task, seen: Seen | None = None) -> None:
        """Compute a task: read its inputs from the arena, write its outputs there.

        Args:
            seen: the operands at the task's start, where others run beside it. What changed since
                is read in part as it was and in part as it is, since a kernel reads from its start
                to its end: tasks that lack an event between them give wrong numbers.
        """
        changed = {}
        for name, old in (seen or {}).items():
            new = self._arena.raw(name)
            if not np.array_equal(old, new):
                changed[name] = new.copy()
                half = (old.size // 2) & ~31
                new[:half] = old[:half]
        self._compute(task)
        for name, new in changed.items():
            self._restore(name, new, task)

    def _restore(self, name: str, value: np.ndarray, task: Task) -> None:
        """Put an operand's bytes back, but for those that the task wrote."""
        raw = self._arena.raw(name)
        mask = np.ones(value.size, bool)
        for out in (self._arena.raw(o) for o in task.outputs if o):
            offset = out.ctypes.data - raw.ctypes.data
            mask[max(0, offset) : max(0, offset + out.size)] = False
        raw[mask] = value[mask]

    def _compute(self, task: Task) -> None:
        if self._tile_level and task.call is not None:
            names = (*task.inputs, *task.outputs)
            operands = [self._arena.storage(n) if n else None for n in names]
            call = task.call
            run_tile_level(self._chip, call.kernel, call.args, call.plan, operands)
        else:
            self._operator_level(task)
        if self._observe is not None:
            self._observe(task, self._arena)

    def _operator_level(self, task: Task) -> None:
        arena, buffers = self._arena, self._exe.buffers
        ins = [buffers[n] if n else None for n in task.inputs]
        outs = [buffers[n] for n in task.outputs]
        node = task.node
        layouts = {b.layout for b in (*ins, *outs) if b is not None}
        elementwise = get_operator(node.op_type, node.name).elementwise
        if elementwise and len(layouts) == 1:
            # Element i depends on elements i only: the device arrays will do as they are.
            x = [arena.storage(n) if n else None for n in task.inputs]
            types = [TensorType(b.storage_shape, b.dtype) for b in outs]
            for name, value in zip(task.outputs, compute_node(node, x, types), strict=True):
                arena.storage(name)[...] = value
            return
        kind = _blocked(ins) if node.op_type in CONVOLUTIONS else ""
        if kind and task.compute_dtype not in BYTES:
            self._conv(task, ins, kind == "depthwise")
            return
        x = [arena.read(n) if n else None for n in task.inputs]
        types = [TensorType(b.shape, b.dtype) for b in outs]
        results = compute_node(node, x, types)
        for name, value in zip(task.outputs, results, strict=True):
            arena.write(name, np.asarray(value))

    def _prepare_weights(self) -> None:
        for task in self._exe.tasks:
            if task.node.op_type not in CONVOLUTIONS or task.compute_dtype in BYTES:
                continue
            kind = _blocked([self._exe.buffers[n] if n else None for n in task.inputs])
            for i in CONVOLUTIONS[task.node.op_type] if kind else ():
                w = self._exe.buffers[task.inputs[i]]
                if w.name in self._exe.constants:
                    self._weights[w.name] = self._arranged(w, kind == "depthwise")

    def _arranged(self, w: Buffer, depthwise: bool) -> np.ndarray:
        stored = self._arena.storage(w.name)
        if depthwise:
            return depthwise_taps(stored, c0_of(w.dtype))
        arranged = gemm_weights_few if w.layout is Layout.FRACTAL_Z_C04 else gemm_weights
        return arranged(stored, prod(w.shape[2:]), w.shape[1])

    def _conv(self, task: Task, ins: list[Buffer | None], depthwise: bool) -> None:
        """A convolution; or two, and what is between them is rounded to the type of the result."""
        arena, node = self._arena, task.node
        x, w = ins[0], ins[1]
        assert x is not None and w is not None
        out = arena.storage(task.outputs[0])

        def read(name: str) -> np.ndarray:
            """An operand, which the pieces' results must not change."""
            found = arena.storage(name)
            return found.copy() if np.may_share_memory(found, out) else found

        steps = [
            (s, None if s.operand is None else read(task.inputs[s.operand])) for s in node.epilogue
        ]
        attrs = attributes(node)
        window = conv_window(x.shape[2:], w.shape[2:], attrs)
        image, bias = spread_image(read(x.name), attrs.get("spread")), self._bias(task, 2)
        if node.op_type == "ConvConv":
            second = ins[3]
            assert second is not None
            between = np.empty((len(image), -(-w.shape[0] // 16), *window.out, 16), out.dtype)
            relu: Steps = [(EpilogueStep("Relu"), None)] if attrs["relu"] else []
            self._convolve(image, w, bias, window, relu, between)
            image, bias = between, self._bias(task, 4)
            w, window = second, conv_window(window.out, (1, 1), POINTWISE)
        group = int(attrs["group"]) if node.op_type == "Conv" else 1
        self._convolve(image, w, bias, window, steps, out, depthwise, group)

    def _convolve(
        self,
        image: np.ndarray,
        w: Buffer,
        bias: np.ndarray | None,
        window: Window,
        steps: Steps,
        out: np.ndarray,
        depthwise: bool = False,
        group: int = 1,
    ) -> None:
        weights = self._weights.get(w.name)
        if weights is None:
            weights = self._arranged(w, depthwise)
        if depthwise:
            pieces = depthwise_blocked(image, weights, bias, window, steps, out)
        else:
            pieces = conv_blocked(image, weights, bias, window, steps, out, group)
        self._workers.run(pieces.work, pieces.whole)

    def _bias(self, task: Task, i: int) -> np.ndarray | None:
        """Input i, where there is one and it is no epilogue step's."""
        fused = {s.operand for s in task.node.epilogue}
        given = i < len(task.inputs) and task.inputs[i] and i not in fused
        return self._arena.storage(task.inputs[i]) if given else None


def _blocked(ins: list[Buffer | None]) -> str:
    """Which convolution on the device layouts has these operands: "dense", "depthwise" or ""."""
    x, w = ins[0], ins[1]
    if x is None or w is None:
        return ""
    if (x.layout, w.layout) in DENSE:
        return "dense"
    one_each = w.layout is Layout.ND and (w.shape[0], w.shape[1]) == (x.shape[1], 1)
    return "depthwise" if one_each and x.layout is Layout.NC1HWC0 else ""
