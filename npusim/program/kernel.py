"""Kernels by name: what an Executable refers to, and what the compiler asks of a kernel.

A kernel is a class registered by `@kernel("Name")`. It states, by pure functions of the launch
(`KernelArgs`), the chip and a tiling, which tilings are legal, what each would cost, how the
blocks split the work, and the traffic of each operand; its `body` is the program of one block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from math import prod
from typing import Any, ClassVar

from npusim.chip.reuse import Reuse, reused
from npusim.chip.spec import ChipSpec
from npusim.errors import UnsupportedError, nearest
from npusim.ir import DType, EpilogueStep, Layout
from npusim.ir.layout import storage_shape
from npusim.program.needs import buffers_needed

#: A tiling: parameter name → value, plain data. Meaning is the kernel's own.
Tiling = dict[str, int]


@dataclass(frozen=True)
class OperandSpec:
    """An operand of a launch: logical shape, element type, layout in GM."""

    shape: tuple[int, ...]
    dtype: DType
    layout: Layout = Layout.ND

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """Shape of the array in GM."""
        return storage_shape(self.shape, self.layout, self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes in GM."""
        return prod(self.storage_shape) * self.dtype.size


@dataclass(frozen=True)
class KernelArgs:
    """What a launch computes: operands, operator, attributes, fused epilogue.

    `attrs` is a sorted tuple of pairs (hashable); use `attr()`.
    """

    op_type: str
    inputs: tuple[OperandSpec | None, ...]
    outputs: tuple[OperandSpec, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    epilogue: tuple[EpilogueStep, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Kept: a launch is the key of what is known of it, and looked up for every tiling."""
        return hash((self.op_type, self.inputs, self.outputs, self.attrs, self.epilogue))

    def __getstate__(self) -> dict[str, Any]:
        """Without the hash, which another process makes anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def operands(self) -> tuple[OperandSpec, ...]:
        """Inputs, then outputs: the index space of GM operands. Absent inputs stay None."""
        return (*self.inputs, *self.outputs)  # type: ignore[arg-type]

    def attr(self, name: str) -> Any:
        """An attribute's value."""
        return dict(self.attrs)[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute's value; `default` where the node does not give it."""
        return dict(self.attrs).get(name, default)


@dataclass(frozen=True)
class Traffic:
    """Bytes a launch moves between GM and the cores, for one operand.

    Attributes:
        unique: distinct bytes touched.
        total: bytes moved over all blocks, re-reads included.
    """

    unique: int
    total: int


@dataclass(frozen=True)
class Plan:
    """A tiling with its block dim and the blocks' shares.

    Attributes:
        tiling: the kernel's parameters.
        block_dim: number of blocks.
        traffic: operand index → bytes.
        classes: (representative block, how many blocks are identical to it).
        workspace: bytes of each workspace operand; their indices follow the outputs'.
        phases: programs that the launch runs one after the other, all cores waiting in between
            (SyncAll).
    """

    tiling: Tiling
    block_dim: int
    traffic: dict[int, Traffic]
    classes: tuple[tuple[int, int], ...] = field(default=())
    workspace: tuple[int, ...] = ()
    phases: int = 1


@dataclass(frozen=True)
class Member:
    """Cores of a block that run one program: its context, instructions, how many such cores.

    The first member is number 0, as set_flag names it; at tile level every core is its own.
    """

    context: Any
    program: Iterator[Any]
    count: int = 1


class KernelDef:
    """A kernel family. Subclass, fill in, register with `@kernel`."""

    name: ClassVar[str] = ""
    #: "AIC" (needs the cube), "AIV" (vector only) or "MIX" (a cube core with its vector cores,
    #: where the chip has them apart)
    core_type: ClassVar[str] = "AIC"

    @staticmethod
    def replaceable(args: KernelArgs) -> Collection[int]:
        """Inputs of the result's shape over which it may lie.

        Each of their tiles is loaded once, before the result's tile is stored over it.
        """
        return ()

    @staticmethod
    def refuse(args: KernelArgs, chip: ChipSpec) -> str:
        """'' when the kernel can run this launch on this chip, else the reason why not."""
        return ""

    @staticmethod
    def tilings(args: KernelArgs, chip: ChipSpec) -> Iterator[Tiling]:
        """Legal tilings: each fits the chip's buffers."""
        raise UnsupportedError("tilings of an abstract kernel", "-", "implement tilings")

    @staticmethod
    def estimate(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> float:
        """Estimated cycles of a tiling, to rank tilings; the machine decides the real time."""
        raise UnsupportedError("estimate of an abstract kernel", "-", "implement estimate")

    @staticmethod
    def plan(args: KernelArgs, chip: ChipSpec, tiling: Tiling) -> Plan:
        """Block dim, block classes and traffic of a tiling."""
        raise UnsupportedError("plan of an abstract kernel", "-", "implement plan")

    @staticmethod
    def body(k: Any, args: KernelArgs, tiling: Tiling, block: int) -> Iterator[Any]:
        """The program of one block: yields instructions for the core `k`."""
        raise UnsupportedError("body of an abstract kernel", "-", "implement body")

    @classmethod
    def launch(
        cls, args: KernelArgs, chip: ChipSpec, tiling: Tiling, block: int, functional: bool
    ) -> tuple[Any, Iterator[Any]]:
        """The core context and instruction stream of one block (see kernels.lang.TileKernel)."""
        raise UnsupportedError("launch of an abstract kernel", "-", "subclass TileKernel")

    @classmethod
    def members(
        cls,
        args: KernelArgs,
        chip: ChipSpec,
        plan: Plan,
        block: int,
        phase: int,
        functional: bool,
    ) -> list[Member]:
        """The cores of one block in a phase: one, unless the kernel is MIX."""
        return [Member(*cls.launch(args, chip, plan.tiling, block, functional))]


_KERNELS: dict[str, type[KernelDef]] = {}
_MODULES: dict[str, str] = {}  #: kernel → the module to import for it


def kernel(name: str) -> Callable[[type[KernelDef]], type[KernelDef]]:
    """Class decorator: register a kernel.

    Raises:
        ValueError: the name is taken.
    """

    def register(cls: type[KernelDef]) -> type[KernelDef]:
        if name in _KERNELS or _MODULES.get(name, cls.__module__) != cls.__module__:
            raise ValueError(f"kernel {name!r} is registered twice")
        cls.name = name
        _KERNELS[name] = cls
        return cls

    return register


def kernels_in(modules: Mapping[str, str]) -> None:
    """Say which module registers which kernel: it is imported with the first use of the kernel."""
    _MODULES.update(modules)


def get_kernel(name: str) -> type[KernelDef]:
    """The kernel of that name.

    Raises:
        UnsupportedError: there is none.
    """
    if name not in _KERNELS and name in _MODULES:
        import_module(_MODULES[name])
    found = _KERNELS.get(name)
    if found is None:
        names = kernel_names()
        raise UnsupportedError(
            f"kernel {name!r}", ", ".join(names), f"use {nearest(name, names)!r}"
        )
    return found


def kernel_names() -> list[str]:
    """All kernels, sorted."""
    return sorted({*_KERNELS, *_MODULES})


def choose_plan(name: str, args: KernelArgs, chip: ChipSpec) -> Plan:
    """The plan of the tiling with the smallest estimate.

    Raises:
        UnsupportedError: see `choose_tiling`.
    """
    return get_kernel(name).plan(args, chip, choose_tiling(name, args, chip))


@dataclass(frozen=True)
class Ranked:
    """The tiling of the smallest estimate, and that estimate in cycles, the launch left out."""

    tiling: Tiling
    cycles: float


def best_tiling(
    name: str, args: KernelArgs, chip: ChipSpec, reuse: Reuse | None = None
) -> Ranked | None:
    """The best of the kernel's legal tilings; None when it refuses the launch or none fits.

    `reuse`: legal tilings and best ones found before, taken where they hold for the chip too.
    """
    what = ("tiling", name, args)
    return reused(reuse, what, chip, lambda seen: _search(name, args, seen, reuse))


def _search(name: str, args: KernelArgs, chip: ChipSpec, reuse: Reuse | None) -> Ranked | None:
    definition = get_kernel(name)

    def legal(seen: ChipSpec) -> tuple[Tiling, ...]:
        return () if definition.refuse(args, seen) else tuple(definition.tilings(args, seen))

    best: Ranked | None = None
    for tiling in reused(reuse, ("legal tilings", name, args), chip, legal):
        cycles = definition.estimate(args, chip, tiling)
        if best is None or cycles < best.cycles:
            best = Ranked(tiling, cycles)
    return best


NO_TILING = "no tiling fits the on-chip buffers"


def has_tiling(name: str, args: KernelArgs, chip: ChipSpec) -> bool:
    """Whether a kernel that accepts a launch has a tiling for it."""
    return next(iter(get_kernel(name).tilings(args, chip)), None) is not None


def no_tiling(name: str, args: KernelArgs, chip: ChipSpec) -> str:
    """Why a kernel that accepts a launch cannot run it: the buffers, and which sizes would do."""

    def fits(larger: ChipSpec) -> bool:
        return not get_kernel(name).refuse(args, larger) and has_tiling(name, args, larger)

    needed = buffers_needed(chip, fits)
    return f"{NO_TILING}; the smallest that do: {needed}" if needed else NO_TILING


def choose_tiling(name: str, args: KernelArgs, chip: ChipSpec) -> Tiling:
    """The kernel's legal tiling with the smallest estimate.

    Raises:
        UnsupportedError: the kernel refuses the launch, or no tiling fits the chip.
    """
    best = best_tiling(name, args, chip)
    if best is None:
        reason = get_kernel(name).refuse(args, chip)
        shapes = ", ".join(str(o.shape) for o in args.operands if o is not None)
        raise UnsupportedError(
            f"kernel {name} for {args.op_type} of {shapes} on {chip.name}: "
            + (reason or no_tiling(name, args, chip)),
            "launches that the kernel's refuse() accepts and whose tiles fit L1, L0 and UB",
            "use another precision, or a chip with larger buffers",
        )
    return best.tiling


def group_blocks(keys: Sequence[object]) -> tuple[tuple[int, int], ...]:
    """Classes of identical blocks: (first block with a key, how many share it)."""
    first: dict[object, int] = {}
    count: dict[object, int] = {}
    for block, key in enumerate(keys):
        first.setdefault(key, block)
        count[key] = count.get(key, 0) + 1
    return tuple((first[key], count[key]) for key in first)
