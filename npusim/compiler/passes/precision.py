"""Precision: float32 tensors become fp16 or bf16 where the mode says so; Casts where types meet.

As CANN compiles for inference: weights are converted when loaded, activations are stored in the
type of their operator, cube sums and the statistics inside kernels stay fp32. The model's inputs
and outputs keep their types. `precision_choice` decides per node; here the graph is rewritten,
with one Cast per tensor and type.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from npusim.compiler.options import CompileContext
from npusim.compiler.precision_choice import (
    KEEP,
    KEEP_OUTPUTS,
    READS_ANY,
    WIDE,
    choose,
    data_inputs,
    data_outputs,
)
from npusim.compiler.precision_modes import Rule, check_mode
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.errors import UnsupportedError
from npusim.ir import Constant, DType, Graph, Node, Tensor, TensorType, convert


@graph_pass("InsertCastPass", Kind.NEEDED)
def assign_precision(graph: Graph, ctx: CompileContext) -> Graph:
    """Give every operator with float32 data its type, and convert at the borders.

    Raises:
        UnsupportedError: the chip's cube has no such type; lists for a mode without lists.
    """
    mode = ctx.options.mode
    check_mode(mode, ctx.chip)
    if ctx.options.mixlist is not None and mode.rule is not Rule.MIX:
        raise UnsupportedError(
            f"modify-mixlist with precision {mode.name}, which has no operator lists",
            "allow_mix_precision, allow_mix_precision_bf16",
            "use --precision-mode allow_mix_precision, or leave out --modify-mixlist",
        )
    if mode.rule is Rule.KEEP:
        return graph
    return _Rewrite(graph, choose(graph, ctx), ctx).run()


class _Rewrite:
    """Retypes tensors, and inserts Casts: of graph inputs first, of results before their reader,
    of graph outputs last."""

    def __init__(self, graph: Graph, types: dict[str, DType], ctx: CompileContext) -> None:
        self._old, self._types, self._ctx = graph, types, ctx
        self._out = graph.copy()
        self._out.nodes = []
        #: (float32 tensor of the old graph, type) → its name in that type
        self._names: dict[tuple[str, DType], str] = {}
        self._home: dict[str, str] = {}  #: old name → the name that its producer writes

    def run(self) -> Graph:
        wanted = self._wanted()
        for name in self._old.constants:
            self._place_constant(name, wanted[name])
        for name in self._old.inputs:
            self._names[name, WIDE] = name
            for dtype in sorted(wanted[name] - {WIDE}):
                self._read(name, dtype)
        for node in self._old.nodes:
            self._place(node)
        for name in self._old.outputs:
            self._finish_output(name)
        return self._out

    def _wanted(self) -> defaultdict[str, set[DType]]:
        """Float32 tensor → types that it is read in."""
        wanted: defaultdict[str, set[DType]] = defaultdict(set)
        for node in self._old.nodes:
            data = data_inputs(self._old, node)
            for i, name in enumerate(node.inputs):
                if name in data and i not in KEEP.get(node.op_type, ()):
                    wanted[name].add(self._types[node.name])
                elif name:
                    wanted[name].add(WIDE)
        for name in self._old.outputs:
            wanted[name].add(WIDE)
        return wanted

    def _place_constant(self, name: str, wanted: set[DType]) -> None:
        """Converted when loaded; where it is wanted in both types, into a twin."""
        old = self._old.constants[name]
        if old.type.dtype is not WIDE:
            return
        for dtype in wanted:
            keeps_name = dtype is WIDE or WIDE not in wanted
            own = name if keeps_name else self._ctx.fresh(name)
            self._names[name, dtype] = own
            if dtype is not WIDE:
                self._out.tensors[own] = Tensor(own, old.type.shape, dtype)
                self._out.constants[own] = _converted(old, dtype)

    def _place(self, node: Node) -> None:
        dtype = self._types.get(node.name)
        inputs = tuple(self._operand(node, i) for i in range(len(node.inputs)))
        kept = KEEP_OUTPUTS.get(node.op_type, ())
        outputs = tuple(
            self._result(o, WIDE if i in kept else dtype) for i, o in enumerate(node.outputs)
        )
        if dtype is not None and node.op_type == "Cast" and data_outputs(self._old, node):
            node = node.with_(attrs={**node.attrs, "to": dtype.value})
        self._out.nodes.append(node.with_(inputs=inputs, outputs=outputs))

    def _operand(self, node: Node, i: int) -> str:
        name = node.inputs[i]
        if not name or self._old.tensors[name].dtype is not WIDE:
            return name
        if node.op_type in READS_ANY:
            return self._home.get(name, name)
        kept = i in KEEP.get(node.op_type, ())
        return self._read(name, WIDE if kept else self._types[node.name])

    def _result(self, name: str, dtype: DType | None) -> str:
        """The name under which a node writes its result in its type."""
        if not name or dtype is None or self._old.tensors[name].dtype is not WIDE:
            return name
        own = name
        if dtype is not WIDE:
            if name in self._old.outputs:
                own = self._ctx.fresh(name)
            self._out.tensors[own] = replace(self._old.tensors[name], name=own, dtype=dtype)
        self._names[name, dtype] = self._home[name] = own
        return own

    def _read(self, name: str, dtype: DType) -> str:
        """The tensor in a type, by a Cast where nothing made it so far."""
        if (name, dtype) in self._names:
            return self._names[name, dtype]
        output = dtype is WIDE and name in self._old.outputs
        own = name if output else self._ctx.fresh(name)
        self._out.tensors[own] = replace(self._old.tensors[name], name=own, dtype=dtype)
        source, cast = self._home.get(name, name), self._ctx.fresh(f"{name}_cast")
        self._out.nodes.append(Node(cast, "Cast", (source,), (own,), {"to": dtype.value}))
        self._names[name, dtype] = own
        return own

    def _finish_output(self, name: str) -> None:
        if name in self._home:
            self._read(name, WIDE)


def _converted(c: Constant, target: DType) -> Constant:
    type_ = TensorType(c.type.shape, target)
    return Constant(type_, lambda: convert(c.value(), target), c.fill)
