"""FusedElemwise: trees of elementwise operators, each result in UB until its last reader is done.

What a chain with an epilogue cannot say: results that two steps read, steps on two results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from npusim.chip.spec import ChipSpec
from npusim.errors import GraphError, UnsupportedError
from npusim.ir import Layout, TensorType
from npusim.kernels.broadcast import MAX_UNIT, aligned_shape, make_space
from npusim.kernels.elementwise import Elementwise, constants_of
from npusim.kernels.expressions import lower
from npusim.kernels.ub_chain import Job
from npusim.kernels.vector_program import F32, Builder, Value
from npusim.ops import get_operator
from npusim.ops.cann_fused import FusedStep, types_of
from npusim.program.kernel import KernelArgs, kernel


class Steps:
    """A launch whose attribute `steps` holds operators.

    Attributes:
        steps; count: inputs, which values count from; constants: input → value of those that are
            attributes; specs: the other inputs; types: of inputs and results.
    """

    def __init__(self, args: KernelArgs) -> None:
        self.args = args
        self.steps: tuple[FusedStep, ...] = args.attr("steps")
        self.count = len(args.inputs)
        scalar = {i: args.get(f"const{i}") for i in range(self.count)}
        self.constants = {i: v for i, v in scalar.items() if v is not None}
        self.specs = {i: o for i, o in enumerate(args.inputs) if o is not None}
        first = next(o.dtype for o in self.specs.values())
        given = [TensorType(o.shape, o.dtype) if o else TensorType((), first) for o in args.inputs]
        self.types = types_of(given, self.steps)

    def run(self, b: Builder, values: dict[int, Value]) -> Value:
        """Record all steps; the last one's result."""
        found: dict[int, Any] = {**values, **self.constants}
        for i, step in enumerate(self.steps, self.count):
            operands = [found[j] for j in step.operands]
            if not get_operator(step.op_type).elementwise:
                found[i] = self.other(b, step, operands[0])
                continue
            attrs = step.attributes()
            (found[i],) = lower(b, step.op_type, attrs, constants_of(attrs, operands))
        return found[self.count + len(self.steps) - 1]

    def other(self, b: Builder, step: FusedStep, operand: Any) -> Value:
        """A step that is not elementwise.

        Raises:
            UnsupportedError: the kernel does not have it.
        """
        raise UnsupportedError(f"{step.op_type} in UB", "elementwise operators", "leave it outside")


@contextmanager
def refusing() -> Iterator[None]:
    """Shapes that do not fit are what a kernel refuses."""
    try:
        yield
    except GraphError as e:
        raise UnsupportedError(e.what, e.allowed, e.fix) from None


@lru_cache(maxsize=4096)
def lowered_tree(args: KernelArgs, cap: int) -> Job:
    """The launch as a program; `cap` bounds a unit's elements.

    Raises:
        UnsupportedError: steps, types or shapes that the kernel does not take.
    """
    with refusing():
        tree = Steps(args)
    out, specs = args.outputs[0], tree.specs
    shapes = [aligned_shape(o, out) for o in specs.values()]
    widths = [o.dtype.size for o in (*specs.values(), out)]
    space = make_space(shapes, out.shape, 32 // min(*widths, 2), cap)
    b = Builder(F32, len(space.extents))
    values = {
        i: Value(o.dtype.np, p, i) for (i, o), p in zip(specs.items(), space.patterns, strict=True)
    }
    return Job(space, b.finish([tree.run(b, values)], [out.dtype.np]), True)


@kernel("FusedElemwise")
class FusedElemwise(Elementwise):
    """Elementwise steps in fp32; a constant input is given as attribute `const<i>` instead."""

    @classmethod
    def job(cls, args: KernelArgs, chip: ChipSpec) -> Job:
        return lowered_tree(args, min(MAX_UNIT, chip.core.ub.size // 128))

    @classmethod
    def refuse(cls, args: KernelArgs, chip: ChipSpec) -> str:
        if args.op_type not in ("FusedElemwise", "ReduceElemwise") or args.epilogue:
            return f"operator {args.op_type}, or an epilogue"
        if any(o and (o.layout is not Layout.ND or not o.nbytes) for o in args.operands):
            return "takes ND tensors that are not empty"
        return super().refuse(args, chip)
