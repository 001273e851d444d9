"""Whether bytes that a kernel never wrote reach what it stores: by computing with two fillings.

A kernel may well compute on the lanes behind the end of a short row, as long as nothing that it
stores depends on them. So a block that reads uninitialised bytes is executed twice side by side,
its buffers filled with one pattern here and another there, and whatever differs in GM came from
bytes that nothing wrote. Selections, maxima and masks are followed as they compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from npusim.ir import DType
from npusim.program.access import Access, Mode
from npusim.program.kernel import KernelArgs, OperandSpec, Plan
from npusim.program.region import GM, Region
from npusim.sanitize.findings import Finding, FindingKind, Findings, Side
from npusim.sanitize.overlap import runs
from npusim.sanitize.walk import Step, side

#: Two fillings: NaN in every floating type, and a small number that is no round one.
_FILLS = (0xFF, 0x3C)
_SAMPLE = 1 << 14  #: elements of the sample that operands repeat


class _Bytes:
    """Buffers of a core, filled with one pattern, and GM."""

    def __init__(self, sizes: Mapping[str, int], fill: int, gm: Mapping[int, np.ndarray]) -> None:
        self.spaces = {space: np.full(n, fill, np.uint8) for space, n in sizes.items()}
        self._gm = gm

    def raw(self, region: Region) -> np.ndarray:
        """All bytes of the memory that a region is in."""
        return self._gm[region.operand] if region.space == GM else self.spaces[region.space]

    def view(self, region: Region) -> np.ndarray:
        """The numpy view of a region."""
        return region.view(self.raw(region))

    def holds(self, region: Region) -> bool:
        """Whether a region is within its memory."""
        return not region.size or (region.offset >= 0 and region.end() <= self.raw(region).size)


@dataclass(frozen=True)
class _Origin:
    """The first read of uninitialised bytes that others come from."""

    who: Side
    space: str
    start: int
    nbytes: int


class _Core:
    """One core under two fillings."""

    def __init__(self, sizes: Mapping[str, int], gm: tuple[Mapping[int, np.ndarray], ...]) -> None:
        self.a, self.b = (_Bytes(sizes, fill, g) for fill, g in zip(_FILLS, gm, strict=True))
        #: of each byte, the origin of what differs (0: it was never written)
        self.origin = {space: np.zeros(n, np.int32) for space, n in sizes.items()}

    def differing(self, region: Region) -> np.ndarray:
        """Where the elements of a region are not the same."""
        kind = np.dtype(f"u{region.dtype.itemsize}")
        found: np.ndarray = self.a.view(region.as_type(kind)) != self.b.view(region.as_type(kind))
        return found

    def origins(self, region: Region) -> np.ndarray:
        """The origin of each element."""
        strides = tuple(4 * s for s in region.strides)
        memory = self.origin[region.space]
        return np.ndarray(region.shape, np.int32, memory, 4 * region.offset, strides)

    def extent(self, region: Region) -> tuple[int, int]:
        """(first byte, bytes up to the last) that differ."""
        a, b = self.a.raw(region), self.b.raw(region)
        pieces = zip(*runs(region), strict=True)
        at = np.concatenate([lo + np.flatnonzero(a[lo:hi] != b[lo:hi]) for lo, hi in pieces])
        return int(at[0]), int(at[-1] - at[0]) + 1


class ValueChecker:
    """Visits the instructions of one block and computes them (see `BlockWalk`).

    Args:
        sizes: bytes of the buffers.
        gm: operand → bytes to begin with; stays as it is.
        written: operands that the launch writes → their names.

    Attributes:
        gm: operand → bytes, as the block left them.
    """

    def __init__(
        self,
        where: str,
        sizes: Mapping[str, int],
        gm: Mapping[int, np.ndarray],
        written: Mapping[int, str],
        findings: Findings,
    ) -> None:
        self._where, self._sizes, self._written = where, sizes, written
        self._findings = findings
        other = {i: a.copy() if i in written else a for i, a in gm.items()}
        self.gm = {i: a.copy() if i in written else a for i, a in gm.items()}
        self._gms = (self.gm, other)
        self._cores: dict[int, _Core] = {}
        self._origins: list[_Origin] = []

    def __call__(self, step: Step, accesses: list[Access]) -> None:
        """Compute an instruction with both fillings, and follow what differs."""
        effect = step.ins.effect
        assert effect is not None
        core = self._cores.get(step.actor[0])
        if core is None:
            core = self._cores[step.actor[0]] = _Core(self._sizes, self._gms)
        if not all(core.a.holds(region) for region, _ in accesses):
            return  # out of bounds: a finding of its own
        origin = 0
        for region, mode in accesses:
            if region.space != GM and mode is not Mode.WRITE and region.size:
                origin = max(origin, self._origin(core, step, region))
        with np.errstate(all="ignore"):
            for memory in (core.a, core.b):
                effect.write(memory, effect.read(memory))
        for region, mode in accesses:
            if mode is Mode.READ or not region.size:
                continue
            differs = core.differing(region)
            if region.space != GM:
                core.origins(region)[...] = np.where(differs, origin, 0) if origin else 0
            elif differs.any():
                self._report(core, step, region, origin)
                core.b.view(region)[...] = core.a.view(region)

    def _origin(self, core: _Core, step: Step, region: Region) -> int:
        """Where what differs in a source comes from; 0 when nothing does."""
        differs = core.differing(region)
        if not differs.any():
            return 0
        found = int(core.origins(region)[differs].max())
        if found:
            return found
        who = side(step, "reads")
        self._origins.append(_Origin(who, region.space, *core.extent(region)))
        return len(self._origins)

    def _report(self, core: _Core, step: Step, region: Region, origin: int) -> None:
        came = self._origins[origin - 1]
        start, nbytes = core.extent(region)
        self._findings.add(
            Finding(
                FindingKind.UNINITIALISED,
                self._where,
                came.who,
                side(step, "writes"),
                came.space,
                came.start,
                came.nbytes,
                f"a write to these bytes of {came.space} before #{came.who.index}",
                f"they reach bytes {start}…{start + nbytes - 1} of {self._written[region.operand]}",
            )
        )


def sample_gm(args: KernelArgs, plan: Plan) -> dict[int, np.ndarray]:
    """Bytes of a launch's operands: numbers for the inputs, zeros for outputs and workspace."""
    rng = np.random.default_rng(0)
    gm = {i: _sample(rng, o) for i, o in enumerate(args.inputs) if o is not None}
    sizes = [*(o.nbytes for o in args.outputs), *plan.workspace]
    return {**gm, **{len(args.inputs) + i: np.zeros(n, np.uint8) for i, n in enumerate(sizes)}}


def _sample(rng: np.random.Generator, spec: OperandSpec) -> np.ndarray:
    """Normal numbers; coins for bool; any bytes for 8-bit integers; 0, an index of any table,
    for wider ones."""
    kind = spec.dtype.np
    if spec.dtype is DType.BOOL:
        values = rng.integers(0, 2, _SAMPLE).astype(kind)
    elif kind.kind in "iu":
        values = rng.integers(0, 100 if kind.itemsize == 1 else 1, _SAMPLE).astype(kind)
    else:
        values = rng.standard_normal(_SAMPLE, np.float32).astype(kind)
    return np.resize(values.view(np.uint8), spec.nbytes)
