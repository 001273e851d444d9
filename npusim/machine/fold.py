"""Folding of steady loops in the scoreboard.

When a body enters an iteration of a `k.loop`, the state of the whole board relative to now (pipe
times, queued instructions, flags, transfers under way, every core's place in its loops) is its
*signature*. The same signature at an earlier iteration means that the board repeats with that
period; whole periods are then skipped by moving every time forward and the loops' indices ahead.
The last iteration of a loop is never skipped. No cycle changes: a property test compares the
folded board with SimPy.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npusim.program.isa import N_PIPES, PIPE_NAMES, Kind

if TYPE_CHECKING:
    from npusim.machine.scoreboard import Core, Scoreboard

MAX_SIGNATURES = 24  #: signatures kept per loop before giving up on folding it
FEW = 8  #: loops of up to this many iterations cannot wait until they have settled
MIN_REMAINING = 4  #: iterations left below which folding cannot pay


@dataclass(slots=True)
class _Snapshot:
    """Counters of the board when a signature was seen first."""

    base: int
    cores: list[_CoreSnapshot]


@dataclass(slots=True)
class _CoreSnapshot:
    loops: list[tuple[Any, int]]
    busy: list[int]
    stall: list[dict[str, int]]
    moved: dict[int, int]
    instructions: int
    scalar_busy: int
    scalar_stall: int


def try_fold(board: Scoreboard, core: Core, loop: Any) -> int:
    """Called when `core` enters a further iteration of `loop`; returns the periods skipped."""
    if loop.count - loop.index < MIN_REMAINING or len(loop.seen) >= MAX_SIGNATURES:
        return 0
    if loop.count > FEW and not _settled(board, loop):
        return 0
    base = core.issue_at
    signature = _signature(board, base)
    before = loop.seen.get(signature)
    now = _Snapshot(base, [_snapshot(c, board.now) for c in board.cores])
    if before is None:
        loop.seen[signature] = now
        return 0
    periods = _periods(before, now)
    if periods > 0:
        _skip(board, before, now, periods)
        loop.seen.clear()
        return periods
    return 0


def _settled(board: Scoreboard, loop: Any) -> bool:
    """As many instructions wait in the queues as at one of the last two iterations.

    While the scalar unit still runs ahead the state cannot repeat, and a signature is not worth
    its cost.
    """
    waiting = sum(len(pipe.queue) for c in board.cores for pipe in c.pipes)
    settled = waiting in loop.waiting
    loop.waiting = (loop.waiting[-1], waiting)
    return settled


def _signature(board: Scoreboard, base: int) -> tuple[object, ...]:
    cores = tuple(_core_signature(c, base, board.now) for c in board.cores)
    starts = tuple(sorted((t - base, c, p) for t, _, c, p in board.heap))
    server = board.server
    flows = tuple((f.tag, round(f.remaining, 3)) for f in server.flows)
    return (cores, starts, server.time - base if flows else 0, flows)


def _core_signature(c: Core, base: int, now: int) -> tuple[object, ...]:
    # What is still open resolves after the last event (`now`), what is issued from here on
    # arrives after the issue point: times before both cannot delay anything any more.
    floor = min(c.issue_at, now)
    pipes: list[object] = []
    for pipe in c.pipes:
        if not pipe.pops:
            continue
        pipes += (
            max(pipe.free_at, floor) - base,
            max(pipe.done_at, floor) - base,
            pipe.blocked,
            tuple([ins.sig or ins.signature() for ins, _ in pipe.queue]),
            tuple([(t if t > floor else floor) - base for _, t in pipe.queue]),
            tuple([t - base for t in pipe.pops if t > floor]),
            None,  # separates pipes
        )
    flags = tuple(
        sorted((f, tuple(max(t, floor) - base for t in ts)) for f, ts in c.flags.items() if ts)
    )
    held = c.held.signature() if c.held is not None else None
    return (tuple(pipes), flags, held, _place(c), c.finished, c.issue_at - base)


def _place(c: Core) -> tuple[object, ...]:
    """Where the core is in its program: per loop its site and how far into its iteration."""
    loops = c.context.loops
    place = []
    for i, lp in enumerate(loops):
        reached = loops[i + 1].begin if i + 1 < len(loops) else c.stats.instructions
        place.append((lp.site, reached - lp.start))
    return (*place, *(q.warm for q in c.context.queues))


def _snapshot(c: Core, now: int) -> _CoreSnapshot:
    """The counters, with what blocked pipes have waited so far (the signature forgets it)."""
    s = c.stats
    busy, stall = list(s.busy), [dict(d) for d in s.stall]
    for p, pipe in enumerate(c.pipes):
        if pipe.blocked:
            ins, since = pipe.queue[0]
            waited = max(0, min(c.issue_at, now) - since)
            if ins.kind == Kind.GM:
                busy[p] += waited
            else:
                reason = PIPE_NAMES[ins.flag[0]]
                stall[p][reason] = stall[p].get(reason, 0) + waited
    return _CoreSnapshot(
        [(lp, lp.index) for lp in c.context.loops],
        busy,
        stall,
        dict(s.moved),
        s.instructions,
        s.scalar_busy,
        s.scalar_stall,
    )


def _periods(before: _Snapshot, now: _Snapshot) -> int:
    """How many whole periods every core can skip."""
    limit: int | None = None
    for old, new in zip(before.cores, now.cores, strict=True):
        moving = _moving_loop(old.loops, new.loops)
        if moving is None:
            if new.loops or new.instructions != old.instructions:
                return 0  # it stands still in a loop, or goes on outside of one: not a period
            continue
        loop, step = moving
        if step <= 0:
            return 0
        room = (loop.count - 2 - loop.index) // step
        limit = room if limit is None else min(limit, room)
    return limit or 0


def _moving_loop(old: list[tuple[Any, int]], new: list[tuple[Any, int]]) -> tuple[Any, int] | None:
    """The one loop that advanced, and by how much; (loop, 0) when the places do not compare."""
    for (a, i), (b, j) in zip(old, new, strict=True):
        if a is not b:
            return (b, 0)
        if j != i:
            inner = zip(old[len(_upto(old, a)) :], new[len(_upto(new, b)) :], strict=True)
            same = all(x[1] == y[1] for x, y in inner)
            return (b, j - i if same else 0)
    return None


def _upto(stack: list[tuple[Any, int]], loop: Any) -> list[tuple[Any, int]]:
    """The stack down to and including `loop`."""
    for n, (lp, _) in enumerate(stack):
        if lp is loop:
            return stack[: n + 1]
    return stack


def _skip(board: Scoreboard, before: _Snapshot, now: _Snapshot, periods: int) -> None:
    """Advance everything by whole periods."""
    shift = (now.base - before.base) * periods
    for c, old, new in zip(board.cores, before.cores, now.cores, strict=True):
        moving = _moving_loop(old.loops, new.loops)
        issued = c.stats.instructions
        _advance_stats(c, old, new, periods, shift)
        if moving is not None:
            loop, step = moving
            loop.index += step * periods
            _advance_places(c, loop, c.stats.instructions - issued)
        _advance_times(c, shift)
    board.heap[:] = [(t + shift, q, c, p) for t, q, c, p in board.heap]
    board.server.time += shift
    board.now += shift


def _advance_places(c: Core, moved: Any, skipped: int) -> None:
    """The moved loop's current iteration, and the loops inside it, began `skipped` later."""
    inside = False
    for lp in c.context.loops:
        if inside:
            lp.begin += skipped
        inside = inside or lp is moved
        if inside:
            lp.start += skipped


def _advance_stats(
    c: Core, old: _CoreSnapshot, new: _CoreSnapshot, periods: int, shift: int
) -> None:
    s = c.stats
    for p in range(N_PIPES):
        gained = (new.busy[p] - old.busy[p]) * periods
        s.busy[p] += gained
        for reason, cycles in new.stall[p].items():
            extra = (cycles - old.stall[p].get(reason, 0)) * periods
            if extra:
                s.add_stall(p, reason, extra)
            gained += extra
        s.idle[p] += shift - gained
    for operand, n in new.moved.items():
        s.moved[operand] += (n - old.moved.get(operand, 0)) * periods
    s.instructions += (new.instructions - old.instructions) * periods
    s.scalar_busy += (new.scalar_busy - old.scalar_busy) * periods
    s.scalar_stall += (new.scalar_stall - old.scalar_stall) * periods


def _advance_times(c: Core, shift: int) -> None:
    c.issue_at += shift
    for pipe in c.pipes:
        pipe.free_at += shift
        pipe.done_at += shift
        pipe.queue = deque((ins, t + shift) for ins, t in pipe.queue)
        pipe.pops = deque(t + shift for t in pipe.pops)
    for flag, times in c.flags.items():
        c.flags[flag] = deque(t + shift for t in times)
