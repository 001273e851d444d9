"""What the user asks of the compiler, and what passes share."""

from __future__ import annotations

from dataclasses import dataclass, field

from npusim.chip.reuse import Reuse
from npusim.chip.spec import ChipSpec
from npusim.compiler.mixlist import MixList
from npusim.compiler.precision_modes import PrecisionMode, mode_named
from npusim.ir import Graph
from npusim.program.kernel import KernelArgs, Plan, Ranked

#: From this level on `npusim.api` has the machine choose the tilings: the compiler itself knows
#: estimates only, and does nothing beyond level 2.
TILING_LEVEL = 3


@dataclass(frozen=True)
class CompileOptions:
    """Options of one compilation.

    Attributes:
        precision: "fp32" keeps the model's types; "fp16"/"bf16" computes in that type; else one
            of CANN's precision modes.
        level: 0 only lowers; 1 cleans up, as CANN's `--oo_level=O1`; 2 fuses;
            3: as 2, and tilings are simulated (see `TILING_LEVEL`).
        disabled: names of passes that do not run.
        reuse_memory: False gives every tensor memory of its own.
        mixlist: changes to the operator lists of mixed precision.
        streams: how many streams parallel branches may use, where that pays. One by default: so
            were the times measured that the machine is fitted to, and what more streams save
            hangs on `scheduler.event`, which is not published.
        small_channel: images of at most 4 channels may go into their convolutions in blocks of 4
            (NC1HWC0_C04), as ATC's `--enable_small_channel=1` has it.
    """

    precision: str = "fp16"
    level: int = 2
    disabled: frozenset[str] = frozenset()
    reuse_memory: bool = True
    mixlist: MixList | None = None
    streams: int = 1
    small_channel: bool = False

    @property
    def mode(self) -> PrecisionMode:
        """The precision mode that `precision` names.

        Raises:
            UnsupportedError: there is none of that name.
        """
        return mode_named(self.precision)


@dataclass(frozen=True)
class Decision:
    """A fusion that was looked at: of which nodes, taken or not, and why."""

    rewrite: str
    nodes: tuple[str, ...]
    taken: bool
    reason: str


@dataclass
class CompileContext:
    """What passes share: the chip, the options, notes for the user, a source of fresh names.

    `taken`: names of the model's own tensors and nodes. `best`: the best tilings found so far;
    `plans`: plans of launches, by kernel and arguments.
    `measured`: the graph whose traffic was counted last, and its bytes. `reuse`: what was computed
    for other compilations.
    """

    chip: ChipSpec
    options: CompileOptions
    notes: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    best: dict[tuple[str, KernelArgs], Ranked | None] = field(default_factory=dict)
    plans: dict[tuple[str, KernelArgs], Plan] = field(default_factory=dict)
    measured: tuple[Graph | None, int] = (None, 0)
    reuse: Reuse | None = None
    _used: dict[str, int] = field(default_factory=dict)

    def fresh(self, base: str) -> str:
        """A name that no tensor or node of the model has."""
        while True:
            n = self._used.get(base, 0)
            self._used[base] = n + 1
            name = f"{base}__{n}"
            if name not in self.taken:
                return name

    def note(self, text: str) -> None:
        """Tell the user something, once."""
        if text not in self.notes:
            self.notes.append(text)

    def decide(self, rewrite: str, nodes: tuple[str, ...], taken: bool, reason: str) -> None:
        """Keep a decision for `--explain-fusion`."""
        self.decisions.append(Decision(rewrite, nodes, taken, reason))
