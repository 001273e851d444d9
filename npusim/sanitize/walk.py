"""Walks the programs of a block in an order that its flags allow, with a vector clock per pipe.

Pipes are the actors; an instruction's time is its number in its pipe. What is before it for
certain: what its pipe began before; what its pipe waited for, and all that came before that. Of
its own pipe it knows only what is complete: a pipe begins the next instruction when the last is
through, `tail` cycles before its result is there, unless a pipe barrier or a flag lies between.

The scalar unit is held when the queue of a pipe is full, as on the chip, so memory stays bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from npusim.program.access import Mode
from npusim.program.isa import N_PIPES, Instr, Kind, Pipe
from npusim.sanitize.clocks import VectorClock
from npusim.sanitize.findings import Finding, FindingKind, Side

Actor = tuple[int, int]  #: core of the block, pipe
Frames = tuple[tuple[str, int], ...]  #: file and line of every generator, outermost first
Flag = tuple[int, int, int]

#: What an access does, in findings.
VERBS = {Mode.READ: "reads", Mode.WRITE: "writes", Mode.ADD: "adds to"}
#: Files of the language, whose lines say little about where a kernel issued an instruction.
_LANGUAGE = ("queues.py", "lang.py", "lang_vector.py", "cross_core.py")


@dataclass(slots=True)
class Step:
    """One instruction as it is executed.

    Attributes:
        actor: core and pipe; name: "V", or "core 1 V" where the block has several cores.
        number: in the core's program; time: in the pipe, from 1 on.
        clock: what is complete when it starts.
        cycle: cycles that the pipe was at work before it starts, at least.
    """

    actor: Actor
    name: str
    number: int
    time: int
    ins: Instr
    frames: Frames
    clock: VectorClock
    cycle: int


Visit = Callable[[Step], None]


@dataclass(slots=True)
class _Item:
    """An instruction issued.

    `paired`: of a set_flag, that waits for all sets of the flag before it were issued.
    """

    number: int
    ins: Instr
    frames: Frames
    paired: bool = True


@dataclass(slots=True)
class _Core:
    """One core of the block: its program and what waits in its queues."""

    number: int
    program: Iterator[Instr]
    queues: list[deque[_Item]]
    held: _Item | None = None
    issued: int = 0


@dataclass(slots=True)
class _FlagState:
    """The sets and waits of one flag of one core.

    Attributes:
        issued: sets issued whose waits are not; sets, waits: executed.
        released: what the sets that were not waited for let their pipe know.
        last: the last set; waited: time of the last wait in its pipe.
    """

    issued: int = 0
    sets: int = 0
    waits: int = 0
    released: deque[VectorClock] = field(default_factory=deque)
    last: Step | None = None
    waited: int = 0


class BlockWalk:
    """The cores of one block; `run` calls `visit` for every instruction but flags.

    Args:
        programs: instructions of each core.
        depth: of a pipe's queue (`core.scalar.queue_depth`).
        where: kernel and block, for findings.

    Attributes:
        findings: of flags; complete after `run`.
        steps: instructions executed.
    """

    def __init__(self, programs: Sequence[Iterator[Instr]], depth: int, where: str) -> None:
        self._cores = [
            _Core(i, program, [deque() for _ in range(N_PIPES)])
            for i, program in enumerate(programs)
        ]
        self._depth = depth
        self._where = where
        actors = [(core.number, pipe) for core in self._cores for pipe in range(N_PIPES)]
        alone = len(self._cores) == 1
        self._names = {
            (core, pipe): Pipe(pipe).name if alone else f"core {core} {Pipe(pipe).name}"
            for core, pipe in actors
        }
        self._clocks = {actor: VectorClock() for actor in actors}
        self._times = dict.fromkeys(actors, 0)
        self._cycles = dict.fromkeys(actors, 0)
        self._last = dict.fromkeys(actors, -1)  #: number of the last instruction executed
        self._flags: dict[tuple[int, Flag], _FlagState] = {}
        self._woken: deque[Actor] = deque()
        self.findings: list[Finding] = []
        self.steps = 0

    def run(self, visit: Visit) -> None:
        """Execute everything that can be; flags that do not add up become findings."""
        before = -1
        while before != self.steps:
            before = self.steps
            for core in self._cores:
                while self._issue(core, visit):
                    self._wake(visit)
        self._stuck()
        self._unbalanced()

    # -- the scalar units ------------------------------------------------------------------

    def _issue(self, core: _Core, visit: Visit) -> bool:
        """Give the core's next instruction to its pipe; False when there is none, or no room."""
        item = core.held or self._next(core)
        if item is None:
            return False
        queue = core.queues[item.ins.pipe]
        if len(queue) >= self._depth:
            core.held = item
            return False
        core.held = None
        queue.append(item)
        if len(queue) == 1:
            self._drain((core.number, item.ins.pipe), visit)
        return True

    def _next(self, core: _Core) -> _Item | None:
        """The next instruction of a core's program."""
        ins = next(core.program, None)
        if ins is None:
            return None
        item = _Item(core.issued, ins, frames_of(core.program))
        core.issued += 1
        if ins.kind >= Kind.SET and ins.member < 0:
            state = self._state(core.number, ins.flag)
            item.paired = state.issued <= 0
            state.issued += 1 if ins.kind == Kind.SET else -1
        return item

    def _wake(self, visit: Visit) -> None:
        while self._woken:
            self._drain(self._woken.popleft(), visit)

    def _drain(self, actor: Actor, visit: Visit) -> None:
        """Execute what is in a pipe's queue up to a flag that is not set."""
        queue = self._cores[actor[0]].queues[actor[1]]
        while queue and self._execute(actor, queue[0], visit):
            queue.popleft()

    # -- the pipes -------------------------------------------------------------------------

    def _execute(self, actor: Actor, item: _Item, visit: Visit) -> bool:
        """Execute one instruction; False when its flag is not set yet."""
        ins, clock, time = item.ins, self._clocks[actor], self._times[actor] + 1
        if ins.kind == Kind.WAIT and not self._waited(actor, ins, time):
            return False
        if ins.serial:
            clock.advance(actor, time - 1)
        step = Step(
            actor, self._names[actor], item.number, time, ins, item.frames, clock,
            self._cycles[actor],
        )  # fmt: skip
        self._times[actor] = time
        self._last[actor] = item.number
        self.steps += 1
        if ins.kind == Kind.SET:
            self._set(step, item.paired)
        elif ins.kind != Kind.WAIT:
            visit(step)
            self._cycles[actor] += ins.occupy
        return True

    def _state(self, core: int, flag: Flag) -> _FlagState:
        return self._flags.setdefault((core, flag), _FlagState())

    def _waited(self, actor: Actor, ins: Instr, time: int) -> bool:
        """A wait takes the oldest set; False when there is none."""
        state = self._state(actor[0], ins.flag)
        if not state.released:
            return False
        self._clocks[actor].join(state.released.popleft())
        state.waits, state.waited = state.waits + 1, time
        return True

    def _set(self, step: Step, paired: bool) -> None:
        """A set fires when everything before it in its pipe is complete."""
        ins = step.ins
        target = step.actor[0] if ins.member < 0 else ins.member
        state = self._state(target, ins.flag)
        if ins.member < 0:
            self._check_twice(state, step, paired)
        released = step.clock.copy()
        released.advance(step.actor, step.time)
        state.released.append(released)
        state.sets, state.last = state.sets + 1, step
        self._woken.append((target, ins.flag[1]))

    def _check_twice(self, state: _FlagState, step: Step, paired: bool) -> None:
        """An event of a core holds one set: the last must have been waited for before.

        That is so when its wait was issued before this set, or is over for certain.
        """
        waiter = (step.actor[0], step.ins.flag[1])
        seen = state.waits == state.sets and state.waited <= step.clock[waiter]
        if paired or seen or state.last is None:
            return
        src, dst, event = step.ins.flag
        self._report(
            FindingKind.SET_TWICE,
            side(state.last, "sets"),
            side(step, "sets"),
            f"wait_flag({Pipe(src).name}, {Pipe(dst).name}, {event}) between the two",
            "a flag that is set is one flag, however often it is set",
        )

    # -- the end ---------------------------------------------------------------------------

    def _stuck(self) -> None:
        """Waits that no set ends."""
        for core in self._cores:
            for item in (queue[0] for queue in core.queues if queue):
                src, dst, event = item.ins.flag
                actor = self._names[(core.number, item.ins.pipe)]
                sets = self._state(core.number, item.ins.flag).sets
                line = line_of(item.frames)
                self._report(
                    FindingKind.NEVER_SET,
                    None,
                    Side(actor, describe(item.ins), item.number, "waits", line),
                    f"set_flag({Pipe(src).name}, {Pipe(dst).name}, {event}): set {sets} times",
                    "what comes behind it was not checked",
                )

    def _unbalanced(self) -> None:
        """Sets that nothing waited for, though the pipe they are for went on.

        Slots that are handed back at the end of a program are no mistake, for nothing fills them
        again: the last set of a flag that was waited for before, or of a queue's slot that was
        filled once.
        """
        for (core, flag), state in self._flags.items():
            src, dst, event = flag
            back, last = self._flags.get((core, (dst, src, event))), state.last
            filled = state.waits or (back.waits if back is not None else 0)
            handed_back = state.sets - state.waits == 1 and filled > 0
            if last is None or state.sets == state.waits or handed_back:
                continue
            if self._last[(core, dst)] < last.number:
                continue
            self._report(
                FindingKind.NEVER_WAITED,
                side(last, "sets"),
                None,
                f"wait_flag({Pipe(src).name}, {Pipe(dst).name}, {event}): set "
                f"{state.sets} times, waited for {state.waits} times",
            )

    def _report(
        self,
        kind: FindingKind,
        first: Side | None,
        second: Side | None,
        missing: str,
        hint: str = "",
    ) -> None:
        """A finding about flags, which concern no bytes."""
        self.findings.append(Finding(kind, self._where, first, second, "", 0, 0, missing, hint))


def frames_of(program: Any) -> Frames:
    """Where the generators of a program stand, outermost first; nothing for other iterators."""
    frames = []
    while (frame := getattr(program, "gi_frame", None)) is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        program = program.gi_yieldfrom
    return tuple(frames)


def line_of(frames: Frames) -> str:
    """File and line of the innermost frame that belongs to the kernel."""
    named = [(file.rpartition("/")[2], line) for file, line in frames]
    own = [f for f in named if f[0] not in _LANGUAGE] or named
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def side(step: Step, access: str) -> Side:
    """A step as a side of a finding."""
    return Side(step.name, describe(step.ins), step.number, access, line_of(step.frames))


def describe(ins: Instr) -> str:
    """Mnemonic, and bytes or flag."""
    return repr(ins).partition(".")[2]
