"""The AI Core's instructions: what pipes execute, what each costs, what it does to memory.

An instruction carries its cost in core cycles, computed by `cost` from the instruction and the
chip when it is built:

* `issue`: cycles of the scalar unit to issue it;
* `occupy`: cycles its pipe cannot start another instruction;
* `tail`: further cycles until its result is visible (to flags, or to a `serial` instruction).

A transfer from or to GM has no fixed `occupy`: it holds its pipe for `occupy` cycles (the
command's head), then for as long as the memory system needs at no more than `cap` bytes a cycle.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from npusim.program.access import Access


class Pipe(IntEnum):
    """The in-order pipes of an AI Core, and the scalar unit that feeds them."""

    MTE2 = 0
    MTE1 = 1
    M = 2
    V = 3
    MTE3 = 4
    FIXP = 5
    S = 6


#: Report names of the pipes, in the order of `Pipe`.
PIPE_NAMES = ("mte2", "mte1", "cube", "vector", "mte3", "fixp", "scalar")
N_PIPES = 6  #: pipes with a queue (all but S)
LOAD_L1 = "copy_gm_l1"  #: mnemonic of GM → L1


class Kind(IntEnum):
    """How the machine handles an instruction."""

    LOCAL = 0
    GM = 1
    SET = 2
    WAIT = 3


class Effect(Protocol):
    """What an instruction does to memory, at tile level."""

    def accesses(self) -> list[Access]:
        """The regions that it touches (for the sanitizer)."""

    def read(self, memory: CoreMemory) -> Any:
        """Read the sources (when the instruction starts)."""

    def write(self, memory: CoreMemory, values: Any) -> None:
        """Write the results (when it completes)."""


class CoreMemory(Protocol):
    """Bytes of one core at tile level: on-chip buffers and the GM operands."""

    def view(self, region: Any) -> np.ndarray:
        """The numpy view of a region."""


class Instr:
    """One instruction in a pipe's queue.

    Attributes:
        kind, pipe: how it is handled and where.
        op: mnemonic, for traces and error messages.
        issue, occupy, tail: cycles; see the module's text.
        serial: start only when everything before it in the pipe is complete (pipe_barrier).
        nbytes, cap, operand, write: of a GM transfer: bytes, bytes per cycle at most, operand
            index, direction.
        flag: (src pipe, dst pipe, id) of a set_flag / wait_flag.
        member: which core of the block a set_flag signals; -1: the core itself.
        effect: what it does at tile level, None when only timed.
    """

    __slots__ = (
        "cap",
        "effect",
        "flag",
        "issue",
        "kind",
        "member",
        "nbytes",
        "occupy",
        "op",
        "operand",
        "pipe",
        "serial",
        "sig",
        "tail",
        "write",
    )

    def __init__(
        self,
        kind: int,
        pipe: int,
        op: str,
        issue: int,
        occupy: int = 0,
        tail: int = 0,
        effect: Effect | None = None,
        serial: bool = False,
    ) -> None:
        self.kind = kind
        self.pipe = pipe
        self.op = op
        self.issue = issue
        self.occupy = occupy
        self.tail = tail
        self.effect = effect
        self.serial = serial
        self.flag: tuple[int, int, int] = (0, 0, 0)
        self.member = -1
        self.nbytes = 0
        self.cap = 0.0
        self.operand = -1
        self.write = False
        self.sig: tuple[object, ...] | None = None

    def signature(self) -> tuple[object, ...]:
        """What of the instruction its timing depends on."""
        if self.sig is None:
            self.sig = (
                self.kind,
                self.pipe,
                self.issue,
                self.occupy,
                self.tail,
                self.serial,
                self.nbytes,
                self.cap,
                self.operand,
                self.flag,
                self.member,
            )
        return self.sig

    def __repr__(self) -> str:
        what = f" {self.nbytes} B" if self.kind == Kind.GM else ""
        if self.kind >= Kind.SET:
            src, dst, i = self.flag
            what = f" {PIPE_NAMES[src]}→{PIPE_NAMES[dst]} #{i}"
        return f"{PIPE_NAMES[self.pipe]}.{self.op}{what}"


def gm_transfer(
    pipe: int,
    op: str,
    issue: int,
    head: int,
    nbytes: int,
    cap: float,
    operand: int,
    write: bool,
    effect: Effect | None,
) -> Instr:
    """A transfer between GM and the core."""
    ins = Instr(Kind.GM, pipe, op, issue, head, 0, effect)
    ins.nbytes = nbytes
    ins.cap = cap
    ins.operand = operand
    ins.write = write
    return ins


def set_flag(src: int, dst: int, event: int, issue: int, cycles: int, member: int = -1) -> Instr:
    """Signal `dst` from `src` once everything before it in `src` is complete.

    `dst` is a pipe of the same core, or of core `member` of the block (CrossCoreSetFlag).
    """
    ins = Instr(Kind.SET, src, "set_flag", issue, cycles)
    ins.flag = (int(src), int(dst), event)
    ins.member = member
    return ins


def wait_flag(src: int, dst: int, event: int, issue: int, cycles: int) -> Instr:
    """Hold `dst` until the matching set_flag of `src`."""
    ins = Instr(Kind.WAIT, dst, "wait_flag", issue, cycles)
    ins.flag = (int(src), int(dst), event)
    return ins
