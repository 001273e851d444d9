"""Which type every operator of a model gets that the model has in float32: one decision a node.

A rule (see `precision_modes`) fixes some; the others follow their inputs, in execution order:

* all inputs of one type: that type. Constants have no say (they are converted when loaded); a
  graph input is float32.
* inputs of both types: the type that needs fewer Casts, of inputs and for readers that are
  decided, those not counted that are there anyway; then fewer bytes of them; then the narrow one.
* no input that says anything (an embedding's rows): as its readers, by the fewest Casts of its
  result; else float32.

Operators that only move data have no precision: outside `fp16`/`bf16` they follow, in any mode.
A Cast reads what there is; its result follows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from npusim.compiler.mixlist import Colour, MixList
from npusim.compiler.options import CompileContext
from npusim.compiler.precision_modes import Rule
from npusim.compiler.select import kernel_args, select_kernel
from npusim.ir import DType, Graph, Layout, Node
from npusim.ops import get_operator
from npusim.program.kernel import KernelArgs, OperandSpec

WIDE = DType.FLOAT32
CUBE_OPS = ("Conv", "MatMul", "Gemm")

#: Inputs that are parameters or statistics, not data: they keep their type. op_type → indices.
KEEP = {
    "Resize": (1, 2),
    "FlashAttentionScoreGrad": (5, 6),
    "AscendQuant": (1,),
    "AscendAntiQuant": (1,),
    "AscendDequant": (1, 2),
    "AscendRequant": (1, 2, 3),
}
#: Outputs that are statistics. op_type → indices.
KEEP_OUTPUTS = {"FlashAttentionScore": (0, 1), "RmsNorm": (1,), "AddRmsNorm": (1,)}

#: Operators that read a tensor of any type as it is.
READS_ANY = ("Cast", "Shape", "Size")

#: Operators whose kernels work on images in NC1HWC0.
_IMAGES = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


def data_inputs(graph: Graph, node: Node) -> list[str]:
    """Float32 inputs that are in the node's type, each once."""
    if node.op_type in READS_ANY:
        return []
    kept = KEEP.get(node.op_type, ())
    return list(dict.fromkeys(
        name for i, name in enumerate(node.inputs)
        if name and i not in kept and graph.tensors[name].dtype is WIDE
    ))  # fmt: skip


def data_outputs(graph: Graph, node: Node) -> list[str]:
    """Float32 outputs that are in the node's type."""
    kept = KEEP_OUTPUTS.get(node.op_type, ())
    return [
        o for i, o in enumerate(node.outputs)
        if o and i not in kept and graph.tensors[o].dtype is WIDE
    ]  # fmt: skip


def choose(graph: Graph, ctx: CompileContext) -> dict[str, DType]:
    """Node → float32 or the mode's narrow type, of every node with float32 data."""
    return _Choice(graph, ctx).run()


class _Choice:
    def __init__(self, graph: Graph, ctx: CompileContext) -> None:
        self._graph, self._ctx = graph, ctx
        self._mode = ctx.options.mode
        self._lists = ctx.options.mixlist or MixList()
        self._types: dict[str, DType] = {}
        self._makers = graph.producers()
        #: tensor → types that decided readers want it in
        self._wanted: defaultdict[str, set[DType]] = defaultdict(set)
        self._takes: dict[KernelArgs, bool] = {}

    def run(self) -> dict[str, DType]:
        data = [n for n in self._graph.nodes
                if data_inputs(self._graph, n) or data_outputs(self._graph, n)]  # fmt: skip
        for name in self._graph.outputs:
            self._wanted[name].add(WIDE)
        following = []
        for node in data:
            fixed = self._fixed(node)
            if fixed is None:
                following.append(node)
            else:
                self._decide(node, fixed)
        mute = []
        for node in following:
            found = self._by_inputs(node)
            if found is None:
                mute.append(node)
            else:
                self._decide(node, found)
        for node in reversed(mute):
            self._decide(node, self._by_readers(node))
        self._tell(data)
        return {n.name: self._types[n.name] for n in data}

    def _decide(self, node: Node, dtype: DType) -> None:
        self._types[node.name] = dtype
        for name in data_inputs(self._graph, node):
            self._wanted[name].add(dtype)

    # -- rules ---------------------------------------------------------------------------------

    def _fixed(self, node: Node) -> DType | None:
        """The type that the mode's rule gives a node; None: it follows its inputs."""
        narrow, rule = self._mode.narrow, self._mode.rule
        if rule is Rule.FORCE:
            keeps = not self._taken(node, narrow) and self._taken(node, WIDE)
            return WIDE if keeps else narrow
        if node.op_type in READS_ANY:
            return None
        if get_operator(node.op_type, node.name).moves_data:
            return self._only(node)
        if rule is Rule.ALLOW:
            return self._only(node) or WIDE
        colour = self._lists.colour(node.op_type)
        if colour is Colour.BLACK:
            return WIDE
        return self._only(node) or (narrow if colour is Colour.WHITE else None)

    def _only(self, node: Node) -> DType | None:
        """The one type that the operator's unit takes it in; None: it takes both, or neither."""
        wide, narrow = (self._taken(node, d) for d in (WIDE, self._mode.narrow))
        if wide is narrow:
            return None
        return WIDE if wide else self._mode.narrow

    def _taken(self, node: Node, dtype: DType) -> bool:
        """Whether the unit that the operator belongs on takes it in a type.

        Matrix products belong on the cube: what the vector unit would do instead does not count.
        """
        if node.op_type in CUBE_OPS:
            return dtype.value in self._ctx.chip.core.cube.k
        if node.op_type in READS_ANY:
            return True
        args = self._launch(node, dtype)
        if args not in self._takes:
            self._takes[args] = bool(select_kernel(args, self._ctx.chip)[0])
        return self._takes[args]

    def _launch(self, node: Node, dtype: DType) -> KernelArgs:
        """The node's launch with its float32 data in `dtype`; pools on images in NC1HWC0."""
        args = kernel_args(self._graph, node)

        def typed(spec: OperandSpec | None, kept: bool) -> OperandSpec | None:
            if spec is None or (spec.dtype is WIDE and kept):
                return spec
            blocked = node.op_type in _IMAGES and len(spec.shape) == 4
            return replace(
                spec,
                dtype=dtype if spec.dtype is WIDE else spec.dtype,
                layout=Layout.NC1HWC0 if blocked else spec.layout,
            )

        stay, stay_out = (table.get(node.op_type, ()) for table in (KEEP, KEEP_OUTPUTS))
        inputs = tuple(typed(spec, i in stay) for i, spec in enumerate(args.inputs))
        made = (typed(spec, i in stay_out) for i, spec in enumerate(args.outputs))
        outputs = tuple(o for o in made if o is not None)
        return replace(args, inputs=inputs, outputs=outputs)

    # -- those that follow ---------------------------------------------------------------------

    def _voice(self, name: str) -> DType | None:
        """The type a tensor is made in; None: a constant, or not decided yet."""
        maker = self._makers.get(name)
        if maker is not None:
            return self._types.get(maker.name)
        return None if name in self._graph.constants else WIDE

    def _by_inputs(self, node: Node) -> DType | None:
        names = data_inputs(self._graph, node)
        if node.op_type == "Cast" and self._graph.tensors[node.inputs[0]].dtype is WIDE:
            names = [node.inputs[0]]
        voices = {name: v for name in names if (v := self._voice(name)) is not None}
        if len(set(voices.values())) < 2:
            return next(iter(voices.values()), None)
        return min((self._mode.narrow, WIDE), key=lambda d: self._casts(node, voices, d))

    def _casts(self, node: Node, voices: dict[str, DType], dtype: DType) -> tuple[int, int]:
        """Casts, and their bytes read, that the node in `dtype` adds."""
        cast = [name for name, made in voices.items()
                if made is not dtype and dtype not in self._wanted[name]]  # fmt: skip
        for name in data_outputs(self._graph, node):
            cast += [name] * len(self._wanted[name] - {dtype})
        return len(cast), sum(self._graph.tensors[name].nbytes for name in cast)

    def _by_readers(self, node: Node) -> DType:
        return min((WIDE, self._mode.narrow), key=lambda d: self._result_casts(node, d))

    def _result_casts(self, node: Node, dtype: DType) -> int:
        return sum(len(self._wanted[o] - {dtype}) for o in data_outputs(self._graph, node))

    # -- what the user should know -------------------------------------------------------------

    def _tell(self, data: list[Node]) -> None:
        ctx, mode = self._ctx, self._mode
        if mode.rule is Rule.ALLOW:
            cube = [n for n in data if n.op_type in CUBE_OPS]
            low = sorted({n.op_type for n in cube if self._types[n.name] is mode.narrow})
            if low:
                ctx.note(
                    f"{', '.join(low)} in {mode.narrow.value}: the cube of "
                    f"{ctx.chip.name} takes {', '.join(ctx.chip.core.cube.k)}"
                )
        if mode.rule is Rule.FORCE:
            for op_type in sorted({n.op_type for n in data if self._types[n.name] is WIDE}):
                ctx.note(f"{op_type} stays in fp32: no AI Core kernel in {mode.narrow.value}")
        if mode.rule is Rule.MIX and ctx.options.mixlist is not None:
            idle = ctx.options.mixlist.idle(n.op_type for n in self._graph.nodes)
            if idle:
                ctx.note(f"modify-mixlist: the model has no {', '.join(idle)}")
