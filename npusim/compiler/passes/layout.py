"""Layouts: convolutions and pools want NC1HWC0; weights are packed when loaded.

In execution order: an operator that needs NC1HWC0 gets it; elementwise operators, channels joined
or split, and repeated pixels stay in it when an operand is in it already; everything else works on
ND. Where producer and consumer disagree a TransData is inserted, once per tensor and layout. The
padding of channels must stay finite (see `padding`). Images of at most 4 channels may go to their
convolutions in NC1HWC0_C04 (see `small_channel`).
Matrix products read ND, or FRACTAL_NZ where that is cheaper with the TransData counted.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from npusim.compiler.costs import Costs
from npusim.compiler.options import CompileContext
from npusim.compiler.passes.padding import Padding
from npusim.compiler.passes.small_channel import in_blocks_of_four
from npusim.compiler.rewrite import Kind, graph_pass
from npusim.compiler.select import kernel_args
from npusim.ir import Graph, Layout, Node, Tensor
from npusim.ir.layout import c0_of, whole_groups
from npusim.kernels.move import resize_repeats
from npusim.kernels.requant import STEPS as QUANT_STEPS
from npusim.ops import attributes, get_operator
from npusim.program.kernel import KernelArgs, OperandSpec

BLOCKED = ("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


@graph_pass("InsertTransNodePass", Kind.NEEDED)
def assign_layouts(graph: Graph, ctx: CompileContext) -> Graph:
    """Set the layout of every tensor and insert TransData where layouts meet."""
    return _Layouts(graph, ctx).run()


class _Layouts:
    def __init__(self, graph: Graph, ctx: CompileContext) -> None:
        self.old = graph
        self.out = graph.copy()
        self.out.nodes = []
        self.ctx = ctx
        self.converted: dict[tuple[str, Layout], str] = {}
        self.padding = Padding()
        self.costs = Costs(ctx)
        self.decided: dict[tuple[KernelArgs, str], list[int]] = {}

    def run(self) -> Graph:
        for node in self.old.nodes:
            self._place(node)
        for name in list(self.out.outputs):
            if self.out.tensors[name].layout is not Layout.ND:
                self._restore_output(name)
        return self.out

    def _place(self, node: Node) -> None:
        image = len(self._shape(node.inputs[0])) == 4
        if node.op_type in BLOCKED and image and len(node.outputs) == 1:
            self._place_blocked(node)
        elif node.op_type in ("MatMul", "Gemm", "MatMulV2"):
            self._place_matmul(node)
        elif self._moves_blocked(node):
            inputs = (self._as(node.inputs[0], Layout.NC1HWC0), *node.inputs[1:])
            self.padding.record(self.out, node)
            self._emit(node, inputs, Layout.NC1HWC0)
        elif self._stays_blocked(node):
            self.padding.record(self.out, node)
            inputs = tuple(self._data(i, Layout.NC1HWC0) for i in node.inputs)
            self._emit(node, inputs, Layout.NC1HWC0)
        else:
            self._emit(node, tuple(self._data(i, Layout.ND) for i in node.inputs), Layout.ND)

    def _place_blocked(self, node: Node) -> None:
        image, filters = self._image_layouts(node)
        inputs = [self._as(node.inputs[0], image), *node.inputs[1:]]
        if node.op_type == "Conv":
            x, weights = (self.out.tensors[i] for i in node.inputs[:2])
            group = int(attributes(node)["group"])
            if whole_groups(x.shape[1], weights.shape[0], group, x.dtype):
                inputs[1] = self._as(node.inputs[1], filters)
            for step in node.epilogue:
                if step.op_type in QUANT_STEPS:
                    continue  # one scale per channel, as a bias
                if step.operand is not None and not self._is_scalar(node.inputs[step.operand]):
                    inputs[step.operand] = self._as(node.inputs[step.operand], Layout.NC1HWC0)
        self.padding.record(self.out, node.with_(inputs=tuple(inputs)))
        self._emit(node, tuple(inputs), Layout.NC1HWC0)

    def _image_layouts(self, node: Node) -> tuple[Layout, Layout]:
        """Of a convolution's or pool's image, and of the weights."""
        image = node.inputs[0]
        has = frozenset(layout for name, layout in self.converted if name == image)
        if node.op_type == "Conv" and in_blocks_of_four(self.out, node, self.ctx, self.costs, has):
            return Layout.NC1HWC0_C04, Layout.FRACTAL_Z_C04
        return Layout.NC1HWC0, Layout.FRACTAL_Z

    def _place_matmul(self, node: Node) -> None:
        """ND, but FRACTAL_NZ for constant weights, and for operands where a TransData pays."""
        inputs = [self._data(i, Layout.ND) for i in node.inputs]
        t = self.out.tensors[node.inputs[1]]
        taken = t.dtype.is_float or node.op_type == "MatMulV2"
        if t.dtype.value in self.ctx.chip.core.cube.k and taken:
            if node.inputs[1] in self.out.constants and len(t.shape) == 2:
                inputs[1] = self._as(node.inputs[1], Layout.FRACTAL_NZ)
            if self.ctx.chip.core.fixp is None:
                for i in self._worth_nz(node, inputs):
                    inputs[i] = self._as(inputs[i], Layout.FRACTAL_NZ)
        self._emit(node, tuple(inputs), Layout.ND)

    def _worth_nz(self, node: Node, inputs: list[str]) -> list[int]:
        """Operands whose TransData to FRACTAL_NZ costs less than ND loads in 32 B bursts do.

        Chips with FIXP read ND in whole rows (ND2NZ), so the question only arises on others.
        """
        chip = self.ctx.chip
        args = kernel_args(self.out, node.with_(inputs=tuple(inputs)))
        key = (args, chip.name)
        if key in self.decided:
            return self.decided[key]
        specs = args.inputs
        movable = [
            i
            for i in (0, 1)
            if (s := specs[i]) is not None and s.layout is Layout.ND and len(s.shape) >= 2
        ]
        best, chosen = self.costs.launch(args), []
        for wanted in ([i] for i in movable) if len(movable) < 2 else ([0], [1], [0, 1]):
            cost = sum(self._transdata_cycles(specs[i]) for i in wanted)
            changed = list(specs)
            for i in wanted:
                changed[i] = replace(specs[i], layout=Layout.FRACTAL_NZ)  # type: ignore[type-var]
            cost += self.costs.launch(replace(args, inputs=tuple(changed)))
            if cost < best:
                best, chosen = cost, wanted
        self.decided[key] = chosen
        return chosen

    def _transdata_cycles(self, spec: OperandSpec | None) -> float:
        assert spec is not None
        target = replace(spec, layout=Layout.FRACTAL_NZ)
        return self.costs.launch(KernelArgs("TransData", (spec,), (target,)))

    def _moves_blocked(self, node: Node) -> bool:
        """An NC1HWC0 image whose pixels are repeated, or cut into whole blocks of channels."""
        if self.out.tensors[node.inputs[0]].layout is not Layout.NC1HWC0:
            return False
        if node.op_type == "Split":
            c0 = c0_of(self.out.tensors[node.inputs[0]].dtype)
            whole = all(self._shape(o)[1] % c0 == 0 for o in node.outputs)
            return int(attributes(node)["axis"]) % 4 == 1 and whole
        if node.op_type == "Resize":
            counts = resize_repeats(kernel_args(self.out, node))
            return counts is not None and counts[:2] == (1, 1)
        return False

    def _stays_blocked(self, node: Node) -> bool:
        """An NC1HWC0 operand, all others alike, scalars or one value per channel."""
        data = [i for i in node.inputs if i]
        if not any(self.out.tensors[i].layout is Layout.NC1HWC0 for i in data):
            return False
        shape = self._shape(node.outputs[0])
        if len(shape) != 4 or len(node.outputs) != 1 or prod(shape) == 1:
            return False
        dtype = self.out.tensors[node.outputs[0]].dtype
        c0 = c0_of(dtype)
        if node.op_type == "Concat":
            axis = int(attributes(node)["axis"]) % 4
            whole = all(self._shape(i)[1] % c0 == 0 for i in data)
            blocked = [self.out.tensors[i].layout is Layout.NC1HWC0 for i in data]
            return axis == 1 and whole and all(blocked)
        if not get_operator(node.op_type).elementwise:
            return False
        if not all(self._joins(i, shape, c0) for i in data):
            return False
        return shape[1] % c0 == 0 or self.padding.stays_finite(self.out, node)

    def _joins(self, name: str, shape: tuple[int, ...], c0: int) -> bool:
        t = self.out.tensors[name]
        if c0_of(t.dtype) != c0:
            return False
        if t.shape == shape or t.type.size == 1:
            return True
        per_channel = t.shape in ((1, shape[1], 1, 1), (shape[1], 1, 1))
        return per_channel and name in self.out.constants

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.out.tensors[name].shape

    def _data(self, name: str, layout: Layout) -> str:
        """A tensor in `layout`; scalars in ND, where they broadcast."""
        if not name:
            return name
        scalar = self.out.tensors[name].type.size == 1
        return self._as(name, Layout.ND if scalar else layout)

    def _is_scalar(self, name: str) -> bool:
        """A constant that the launch carries as an attribute."""
        return name in self.out.constants and self.out.tensors[name].type.size == 1

    def _as(self, name: str, layout: Layout) -> str:
        """The tensor in `layout`: itself, a constant packed so, or a TransData of it."""
        t = self.out.tensors[name]
        if t.layout is layout:
            return name
        found = self.converted.get((name, layout))
        if found is not None:
            return found
        new = self.ctx.fresh(name)
        shape = t.shape
        if layout is Layout.NC1HWC0 and len(shape) == 3:
            shape = (1, *shape)
        self.out.tensors[new] = Tensor(new, shape, t.dtype, layout)
        if name in self.out.constants:
            constant = self.out.constants[name]
            reshaped = constant.map(lambda a: a.reshape(shape), replace(constant.type, shape=shape))
            self.out.constants[new] = reshaped
        else:
            trans = Node(self.ctx.fresh(f"{name}_trans"), "TransData", (name,), (new,))
            self.out.nodes.append(trans)
        self.converted[name, layout] = new
        return new

    def _emit(self, node: Node, inputs: tuple[str, ...], layout: Layout) -> None:
        for o in node.outputs:
            if o:
                self.out.tensors[o] = replace(self.out.tensors[o], layout=layout)
        self.out.nodes.append(node.with_(inputs=inputs))

    def _restore_output(self, name: str) -> None:
        """A graph output made in a blocked layout: rename inside, TransData to ND outside."""
        inner = self.ctx.fresh(name)
        t = self.out.tensors[name]
        self.out.tensors[inner] = replace(t, name=inner)
        self.out.tensors[name] = replace(t, layout=Layout.ND)
        swap = lambda names: tuple(inner if n == name else n for n in names)  # noqa: E731
        self.out.nodes = [
            n.with_(inputs=swap(n.inputs), outputs=swap(n.outputs)) for n in self.out.nodes
        ]
        trans = Node(self.ctx.fresh(f"{name}_trans"), "TransData", (inner,), (name,))
        self.out.nodes.append(trans)
