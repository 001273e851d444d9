"""From a recorded operator to the kernel launch that npusim times for it.

A builder turns one CANN operator type into a kernel and its arguments; builders register by
`@replays("MatMul", …)` in the `rows_*` modules, one operator family each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from npusim.chip.spec import ChipSpec
from npusim.errors import KernelError, UnsupportedError
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ir import DType, Layout
from npusim.program.kernel import KernelArgs, OperandSpec


@dataclass(frozen=True)
class Launch:
    """A kernel by name, with what it computes.

    `in_place`: (output, input) pairs of operand indices that share memory.
    `state`: operands that a network touches once a step, as parameters and moments.
    `fresh`: inputs that the launch just before makes, whatever a table lists in between.
    """

    kernel: str
    args: KernelArgs
    in_place: tuple[tuple[int, int], ...] = ()
    state: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()


#: Kernel → the one that does the same on chips whose L0C leaves through FIXP.
_FIXP = {
    "Conv2DBackpropFilter": "FixpFilterGrad",
    "Conv2DBackpropInput": "FixpConv2D",
}


def on_chip(launch: Launch, chip: ChipSpec) -> Launch:
    """The launch with the kernel that the chip's way out of L0C needs."""
    if chip.core.fixp is None or launch.kernel not in _FIXP:
        return launch
    return replace(launch, kernel=_FIXP[launch.kernel])


Builder = Callable[[RecordedOp], Launch]
_BUILDERS: dict[str, Builder] = {}
_FAMILIES: dict[str, Builder] = {}  #: by the beginning of the type's name
_KERNELS: dict[str, tuple[str, ...]] = {}  #: what launches of a type are by, where declared


def replays(*op_types: str, kernels: tuple[str, ...] = ()) -> Callable[[Builder], Builder]:
    """Decorator: the builder of these CANN operator types.

    `kernels`: all that its launches are by, for operators that no graph is compiled to.

    Raises:
        ValueError: a type has a builder already.
    """

    def register(build: Builder) -> Builder:
        for op_type in op_types:
            if op_type in _BUILDERS:
                raise ValueError(f"operator type {op_type!r} has two builders")
            _BUILDERS[op_type] = build
            if kernels:
                _KERNELS[op_type] = kernels
        return build

    return register


def replays_family(prefix: str) -> Callable[[Builder], Builder]:
    """Decorator: the builder of all types that begin so and have none of their own.

    Raises:
        ValueError: the prefix has a builder already.
    """

    def register(build: Builder) -> Builder:
        if prefix in _FAMILIES:
            raise ValueError(f"types {prefix!r} have two builders")
        _FAMILIES[prefix] = build
        return build

    return register


def known_types() -> list[str]:
    """Operator types that have a builder by their name, sorted."""
    return sorted(_BUILDERS)


def kernels_of(op_type: str) -> tuple[str, ...]:
    """The kernels that a builder declares; none where the compiler knows the operator's."""
    return _KERNELS.get(op_type, ())


def builder_of(op_type: str) -> Builder | None:
    """The builder of a type: its own, else its family's; None when there is neither."""
    if op_type in _BUILDERS:
        return _BUILDERS[op_type]
    return next((build for p, build in _FAMILIES.items() if op_type.startswith(p)), None)


def launch_of(op: RecordedOp) -> Launch:
    """The launch that stands for a recorded operator.

    Raises:
        UnsupportedError: the type has no builder, or its operands are not what it expects.
        KernelError: the builder takes a kernel that it has not declared.
    """
    build = builder_of(op.op_type)
    if build is None:
        raise UnsupportedError(
            f"operator type {op.op_type}",
            "the types that `npusim replay` knows",
            "it is counted as not covered; add a builder in npusim/explore/replay/",
        )
    try:
        launch = build(op)
    except (IndexError, ValueError) as e:
        raise UnsupportedError(
            f"{op.op_type} with {len(op.inputs)} inputs and {len(op.outputs)} outputs: {e}",
            "operands as CANN's operator has them",
            "check the row's shapes and formats",
        ) from None
    declared = kernels_of(op.op_type)
    if declared and launch.kernel not in declared:
        raise KernelError(
            f"a launch of {op.op_type} by {launch.kernel}",
            ", ".join(declared),
            f"declare it: @replays({op.op_type!r}, kernels=…)",
        )
    return launch


def operand(t: RecordedTensor, dtype: DType | None = None) -> OperandSpec:
    """A recorded operand as a launch's: device shape back to the logical one.

    Raises:
        ValueError: a format or an element type that npusim does not have.
    """
    kind = dtype if dtype is not None else _dtype(t)
    s = t.shape
    if t.format == "NC1HWC0" and len(s) == 5:
        return OperandSpec((s[0], s[1] * s[4], s[2], s[3]), kind, Layout.NC1HWC0)
    if t.format == "NDC1HWC0" and len(s) == 6:
        return OperandSpec((s[0], s[2] * s[5], s[1], s[3], s[4]), kind, Layout.NDC1HWC0)
    if t.format == "FRACTAL_NZ" and len(s) >= 4:
        *batch, n1, m1, m0, n0 = s
        return OperandSpec((*batch, m1 * m0, n1 * n0), kind, Layout.FRACTAL_NZ)
    if t.format in ("ND", "FRACTAL_Z"):  # a FRACTAL_Z without its filter is bytes in order
        return OperandSpec(s, kind, Layout.ND)
    raise ValueError(f"format {t.format} of shape {s}")


def _dtype(t: RecordedTensor) -> DType:
    try:
        return DType(t.dtype)
    except ValueError:
        raise ValueError(f"element type {t.dtype!r}") from None


def filter_operand(weights: RecordedTensor, image: RecordedTensor) -> OperandSpec:
    """FRACTAL_Z weights (C1·kh·kw, Co1, 16, C0) that convolve an NC1HWC0 image: (Co, C, kh, kw).

    The window is taken as square where its area is a square, else as a row.

    Raises:
        ValueError: the weights do not fit the image's channels.
    """
    k1, co1, co0, c0 = weights.shape
    c1 = image.shape[1]
    if k1 % c1:
        raise ValueError(f"FRACTAL_Z {weights.shape} with {c1} channel blocks")
    taps = k1 // c1
    side = round(taps**0.5)
    kh, kw = (side, side) if side * side == taps else (1, taps)
    return OperandSpec((co1 * co0, c1 * c0, kh, kw), _dtype(weights), Layout.FRACTAL_Z)
