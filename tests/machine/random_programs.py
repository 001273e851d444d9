"""Random programs: chains of pipes between queues, in nests of loops, with any costs.

Wilder than kernels are: they look for states of the core that folding and the scoreboard could
mistake for one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from npusim.kernels.lang import Kernel, Queue
from npusim.machine.gm import GmState
from npusim.program import isa
from npusim.program.isa import Instr, Kind, Pipe

CHAINS = (
    (Pipe.MTE2, Pipe.V, Pipe.MTE3), (Pipe.MTE2, Pipe.MTE1, Pipe.M, Pipe.V, Pipe.MTE3),
    (Pipe.MTE2, Pipe.MTE1, Pipe.M, Pipe.FIXP), (Pipe.MTE2, Pipe.MTE3), (Pipe.MTE2, Pipe.V),
    (Pipe.V, Pipe.MTE3),
)  # fmt: skip
OPERANDS = 3


def random_instruction(rng: Random, pipe: Pipe) -> Instr:
    """A transfer of any size on a GM pipe, else an instruction of any cost."""
    issue = rng.choice([0, 1, 2, 5, 11])
    if pipe in (Pipe.MTE2, Pipe.MTE3, Pipe.FIXP):
        nbytes, cap = rng.choice([64, 333, 1000, 5000, 20001]), rng.choice([7.7, 16.0, 33.3, 100.0])
        write, operand = pipe is not Pipe.MTE2, rng.randrange(OPERANDS)
        head = rng.choice([5, 20])
        return isa.gm_transfer(pipe, "move", issue, head, nbytes, cap, operand, write, None)
    occupy, tail = rng.choice([0, 1, 5, 100, 333]), rng.choice([0, 3, 18, 80])
    return Instr(Kind.LOCAL, pipe, "work", issue, occupy, tail, None, rng.random() < 0.3)


@dataclass
class RandomProgram:
    """A nest of loops around one pass through a chain of pipes.

    Attributes:
        counts: of the loops, outermost first; before, after: instructions around each level.
        stages: instructions of each pipe of a pass; last: of the innermost loop's last pass.
    """

    counts: list[int]
    chain: tuple[Pipe, ...]
    slots: list[int]
    before: list[list[Instr]]
    after: list[list[Instr]]
    stages: list[list[Instr]]
    last: list[list[Instr]]

    @staticmethod
    def of(rng: Random) -> RandomProgram:
        """Any program, of up to a few thousand instructions."""
        counts = [rng.randint(1, rng.choice([4, 40, 80])) for _ in range(rng.randint(1, 2))]
        chain = rng.choice(CHAINS)

        def some(most: int, pipe: Pipe | None = None) -> list[Instr]:
            count = rng.randint(0 if pipe is None else 1, most)
            return [random_instruction(rng, pipe or rng.choice(chain)) for _ in range(count)]

        wide = rng.choice([1, 2, 2, 20])
        stages = [some(wide, p) for p in chain]
        last = [some(wide, p) for p in chain] if rng.random() < 0.5 else stages
        return RandomProgram(
            counts,
            chain,
            [rng.choice([1, 1, 2, 2, 3]) for _ in chain[1:]],
            [some(1) for _ in counts],
            [some(1) for _ in counts],
            stages,
            last,
        )

    def __call__(self, k: Kernel) -> Iterator[Instr]:
        """The program of one core."""
        ends = zip(self.slots, self.chain, self.chain[1:], strict=False)
        queues = [k.queue("UB", 32, n, a, b) for n, a, b in ends]
        yield from self._nest(k, queues, 0)

    def _nest(self, k: Kernel, queues: list[Queue], depth: int) -> Iterator[Instr]:
        count = self.counts[depth]
        for i in k.loop(count):
            yield from self.before[depth]
            if depth + 1 < len(self.counts):
                yield from self._nest(k, queues, depth + 1)
            else:
                yield from self._pass(queues, self.last if i == count - 1 else self.stages)
            yield from self.after[depth]

    def _pass(self, queues: list[Queue], stages: list[list[Instr]]) -> Iterator[Instr]:
        for i, stage in enumerate(stages):
            if i:
                yield queues[i - 1].deque()
            if i < len(queues):
                yield from queues[i].alloc()
            yield from stage
            if i:
                yield queues[i - 1].free()
            if i < len(queues):
                yield queues[i].enque()


def random_memory(rng: Random) -> GmState:
    """Operands in L2, in HBM, or partly so."""
    shares = [rng.choice([0.0, 0.0, 1.0, 0.3, rng.random()]) for _ in range(OPERANDS)]
    return GmState(tuple(enumerate(shares)))
