"""The sanitizer of kernels: launches, block by block, and all distinct launches of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from npusim.chip.spec import ChipSpec
from npusim.errors import KernelError
from npusim.program.access import Access
from npusim.program.executable import Buffer, Executable, KernelCall, Task
from npusim.program.isa import Kind
from npusim.program.kernel import KernelArgs, KernelDef, Plan, get_kernel
from npusim.sanitize.findings import Finding, FindingKind, Findings
from npusim.sanitize.kernel_gm import GmTracker
from npusim.sanitize.kernel_memory import MemoryChecker, buffer_sizes
from npusim.sanitize.kernel_races import RaceDetector, Spaces
from npusim.sanitize.kernel_values import ValueChecker, sample_gm
from npusim.sanitize.walk import BlockWalk, Step

Progress = Callable[[str, int, int], None]
Aliases = Mapping[int, tuple[int, int]]
Check = Callable[[Step, list[Access]], None]

#: Instructions up to which all blocks of a launch are walked to compare what they do to GM.
ALL_BLOCKS = 300_000


@dataclass(frozen=True)
class SanitizeReport:
    """What the sanitizer did and found.

    Attributes:
        launches: distinct launches checked (kernel, arguments, plan, operands in place).
        kernels: different kernels among them.
        instructions: executed by the sanitizer.
        findings: none for sound kernels.
    """

    launches: int
    kernels: int
    instructions: int
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return {
            "launches": self.launches,
            "kernels": self.kernels,
            "instructions": self.instructions,
            "findings": [f.as_dict() for f in self.findings],
        }

    def __str__(self) -> str:
        found = f"{len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}"
        head = (
            f"sanitizer: {self.launches} launches of {self.kernels} kernels checked, "
            f"{found if self.findings else 'no findings'}"
        )
        return "\n".join([head, *map(str, self.findings)])


def sanitize_executable(
    exe: Executable, chip: ChipSpec, progress: Progress | None = None
) -> SanitizeReport:
    """Check every distinct kernel launch of a model once."""
    distinct: dict[object, tuple[KernelCall, dict[int, tuple[int, int]]]] = {}
    for task in exe.tasks:
        if task.call is not None:
            aliases = aliases_of(task, exe.buffers)
            key = (task.call.kernel, task.call.args, repr(task.call.plan), tuple(aliases.items()))
            distinct.setdefault(key, (task.call, aliases))
    findings, instructions = Findings(), 0
    for i, (call, aliases) in enumerate(distinct.values()):
        launch = _Launch(chip, call.kernel, call.args, call.plan, aliases)
        findings.extend(launch.check())
        instructions += launch.instructions
        if progress is not None:
            progress("sanitize", i + 1, len(distinct))
    kernels = {call.kernel for call, _ in distinct.values()}
    return SanitizeReport(len(distinct), len(kernels), instructions, tuple(findings.all))


def aliases_of(task: Task, buffers: Mapping[str, Buffer]) -> dict[int, tuple[int, int]]:
    """Operands in whose place a result lies: input → (output, offset in it)."""
    found = {}
    for i, name in enumerate(task.inputs):
        for o, out in enumerate(task.outputs):
            if not name or not out:
                continue
            a, b = buffers[name], buffers[out]
            if a.address < b.address + b.nbytes and b.address < a.address + a.nbytes:
                found[i] = (len(task.inputs) + o, a.address - b.address)
    return found


def sanitize_launch(
    chip: ChipSpec, kernel: str, args: KernelArgs, plan: Plan, aliases: Aliases | None = None
) -> list[Finding]:
    """Check one kernel launch: races, flags, uninitialised reads, bounds, alignment.

    One block of every class of identical blocks is walked in full; all blocks are walked for what
    they do to GM, up to `ALL_BLOCKS` instructions (beyond: one of every class, and the last).

    Args:
        aliases: input → (output that lies in its place, byte offset of the input in it).
    """
    return _Launch(chip, kernel, args, plan, aliases or {}).check()


class _Launch:
    """One launch under the sanitizer."""

    def __init__(
        self, chip: ChipSpec, name: str, args: KernelArgs, plan: Plan, aliases: Aliases
    ) -> None:
        self._chip, self._name, self._args, self._plan = chip, name, args, plan
        self._kernel: type[KernelDef] = get_kernel(name)
        self._findings = Findings()
        inputs, outputs = len(args.inputs), len(args.outputs)
        self._operands = {i: o.nbytes for i, o in enumerate(args.operands) if o is not None}
        names = {inputs + i: f"GM operand {inputs + i} (output {i})" for i in range(outputs)}
        self._inputs = {i: f"GM operand {i} (input {i})" for i in range(inputs)}
        for i, nbytes in enumerate(plan.workspace):
            self._operands[inputs + outputs + i] = nbytes
            names[inputs + outputs + i] = f"GM operand {inputs + outputs + i} (workspace {i})"
        self._names, self._aliases = names, dict(aliases)
        self.instructions = 0

    def check(self) -> list[Finding]:
        """Walk the blocks."""
        plan, total = self._plan, 0
        classes = plan.classes or tuple((block, 1) for block in range(plan.block_dim))
        for block, alike in classes:
            for phase in range(plan.phases):
                total += alike * self._check_block(block, phase)
        every = total <= ALL_BLOCKS
        some = sorted({block for block, _ in classes} | {plan.block_dim - 1})
        self._compare_blocks(range(plan.block_dim) if every else some, every)
        return self._findings.all

    def _check_block(self, block: int, phase: int) -> int:
        """Walk one block in full: its pipes and buffers. Returns its instructions."""
        where = f"{self._name}, block {block}"
        if self._plan.phases > 1:
            where += f", phase {phase}"
        memory = MemoryChecker(where, buffer_sizes(self._chip), self._findings)

        def checks(cores: int) -> list[Check]:
            return [RaceDetector(where, self._spaces(cores), self._findings), memory]

        walk = self._walk(block, phase, where, checks)
        if walk is None:
            return 0
        self._findings.extend(walk.findings)
        if memory.uninitialised:
            self._compute(block, phase, where, self._findings)
        return walk.steps

    def _compute(self, block: int, phase: int, where: str, findings: Findings) -> ValueChecker:
        """Execute one block on sample numbers."""
        gm = sample_gm(self._args, self._plan)
        values = ValueChecker(where, buffer_sizes(self._chip), gm, self._names, findings)
        self._walk(block, phase, where, lambda _: [values])
        return values

    def _compare_blocks(self, blocks: Sequence[int], complete: bool) -> None:
        """Check what blocks do to the same bytes of GM."""

        def values(block: int, operand: int) -> np.ndarray:
            return self._compute(block, phase, self._name, Findings()).gm[operand]

        names = {**self._inputs, **self._names}
        tracker = GmTracker(
            self._name, self._spaces(1), self._operands, names, values, self._findings
        )
        for phase in range(self._plan.phases):
            for block in blocks:
                tracker.block = block
                self._walk(
                    block, phase, f"{self._name}, block {block}", lambda _: [tracker], gm=True
                )
            tracker.end_phase()
        if complete:
            tracker.end_launch()

    def _walk(
        self,
        block: int,
        phase: int,
        where: str,
        checks: Callable[[int], list[Check]],
        gm: bool = False,
    ) -> BlockWalk | None:
        """Execute a block's programs; None when the kernel itself refuses to build one.

        Args:
            checks: number of cores → what looks at every instruction.
            gm: only at transfers between GM and a core.
        """
        try:
            members = self._kernel.members(
                self._args, self._chip, self._plan, block, phase, functional=True
            )
            looking = checks(len(members))
            walk = BlockWalk(
                [m.program for m in members], self._chip.core.scalar.queue_depth, where
            )

            def visit(step: Step) -> None:
                if step.ins.effect is not None and (not gm or step.ins.kind == Kind.GM):
                    accesses = step.ins.effect.accesses()
                    for check in looking:
                        check(step, accesses)

            walk.run(visit)
        except KernelError as error:
            self._findings.add(
                Finding(
                    FindingKind.REFUSED, where, None, None, "", 0, 0, error.allowed,
                    f"{error.what}; {error.fix}",
                )
            )  # fmt: skip
            return None
        self.instructions += walk.steps
        return walk

    def _spaces(self, cores: int) -> Spaces:
        return Spaces(cores, self._names, self._aliases)
