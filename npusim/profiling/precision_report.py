"""What `npusim precision` prints: a model in every precision mode of a chip. 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.profiling.tables import lines, table
from npusim.profiling.text import duration, shorten, signed, size

#: An error jumps where it is this many times the largest before it …
JUMP_FACTOR = 4.0
#: … and above this: one unit in the last place of the mode's type, relative to the largest value.
JUMP_FLOORS = {"float32": 2.0**-20, "float16": 2.0**-10, "bfloat16": 2.0**-7}

_NAME_WIDTH = 22


@dataclass(frozen=True)
class TensorError:
    """How far a tensor is from numpy's.

    Attributes:
        name: of the tensor; op: of the task that made it; op_type: with what is fused.
        error: largest difference, over the reference's largest magnitude.
        output: whether it is an output of the model.
    """

    name: str
    op: str
    op_type: str
    error: float
    output: bool


@dataclass(frozen=True)
class Jump:
    """The first tensor whose error jumps, and the largest error before it."""

    tensor: TensorError
    before: float


@dataclass(frozen=True)
class ModeReport:
    """A model in one precision mode.

    Attributes:
        mode: CANN's name, else npusim's; label: a short one, for columns.
        narrow: the type that it may put in float32's place.
        same_as: the mode listed before that gave the same tasks; '' for none.
        us: time of a run; weight_bytes, activation_bytes: of device memory.
        casts: Cast operators, fused ones too.
        tasks: all but Casts and TransData; wide: those of them that read float32.
        tensors: those that numpy has too, in execution order.
        notes: what the compiler said.
    """

    mode: str
    label: str
    narrow: str
    same_as: str
    us: float
    weight_bytes: int
    activation_bytes: int
    casts: int
    tasks: int
    wide: int
    tensors: tuple[TensorError, ...]
    notes: tuple[str, ...]

    @property
    def worst_output(self) -> TensorError | None:
        """The output with the largest error."""
        return max((t for t in self.tensors if t.output), key=lambda t: t.error, default=None)

    @property
    def worst(self) -> TensorError | None:
        """The tensor with the largest error."""
        return max(self.tensors, key=lambda t: t.error, default=None)

    @property
    def jump(self) -> Jump | None:
        """Where the error jumps first."""
        return first_jump(self.tensors, JUMP_FLOORS[self.narrow])


def first_jump(tensors: Sequence[TensorError], floor: float) -> Jump | None:
    """The first tensor whose error is above `floor` and JUMP_FACTOR times the largest before."""
    largest = 0.0
    for t in tensors:
        if t.error > floor and t.error >= JUMP_FACTOR * largest:
            return Jump(t, largest)
        largest = max(largest, t.error)
    return None


def print_modes(
    modes: Sequence[ModeReport],
    console: Console,
    *,
    heading: Sequence[tuple[str, str]],
    every_tensor: bool = False,
) -> None:
    """Print time, memory, Casts and errors of the modes.

    Args:
        heading: labelled lines on top (model, chip, reference).
        every_tensor: also the error of every tensor.
    """
    lines(console, heading)
    console.print(_modes_table(modes), "", _errors_table(modes))
    remarks = [
        "in fp32: tasks that read float32. Error: largest difference over the largest value.",
        f"It jumps where it is above one unit of the mode's type and {JUMP_FACTOR:g} times the",
        "largest before. --opt-level O1 keeps the tensors that fusion does away with.",
        *(f"{m.mode}: the same tasks as {m.same_as}." for m in modes if m.same_as),
    ]
    console.print(Text("\n".join(remarks), style="dim"))
    if every_tensor:
        console.print("", _tensors_table(modes))


def mode_notes(modes: Sequence[ModeReport]) -> list[str]:
    """What the compiler said of some modes and not of all."""
    found = dict.fromkeys(text for m in modes for text in m.notes)
    of = {text: [m.mode for m in modes if text in m.notes] for text in found}
    return [f"{', '.join(names)}: {text}" for text, names in of.items() if len(names) < len(modes)]


def _modes_table(modes: Sequence[ModeReport]) -> Table:
    found = table(
        "Precision modes", "mode", ">time", ">vs. first", ">weights", ">activations", ">in fp32",
        ">Casts", ">out error",
    )  # fmt: skip
    for m in modes:
        change = "·" if m is modes[0] else signed(m.us / modes[0].us - 1)
        cells = (m.mode, duration(m.us), change, size(m.weight_bytes), size(m.activation_bytes),
                 f"{m.wide}/{m.tasks}", str(m.casts or "·"), _error(m.worst_output))  # fmt: skip
        found.add_row(*map(Text, cells))
    return found


def _errors_table(modes: Sequence[ModeReport]) -> Table:
    """Errors of the modes that differ."""
    found = table(
        "Error of every tensor against numpy", "mode", ">tensors", "worst", ">error", "jumps at",
        ">from", ">to",
    )  # fmt: skip
    for m in modes:
        if m.same_as:
            continue
        jump = m.jump
        name = "-" if m.worst is None or not m.worst.error else shorten(m.worst.name, _NAME_WIDTH)
        where = ("-", "", "") if jump is None else (
            f"{shorten(jump.tensor.name, _NAME_WIDTH)}, {jump.tensor.op_type}",
            f"{jump.before:.1e}", f"{jump.tensor.error:.1e}",
        )  # fmt: skip
        found.add_row(*map(Text, (m.mode, str(len(m.tensors)), name, _error(m.worst), *where)))
    return found


def _tensors_table(modes: Sequence[ModeReport]) -> Table:
    """The error of every tensor in the modes that differ; "·" where it is fused away."""
    shown = [m for m in modes if not m.same_as]
    found = table(
        "Tensors in execution order", "tensor", "made by", *(f">{m.label}" for m in shown)
    )
    errors = [{t.name: t for t in m.tensors} for m in shown]
    for name in _in_order(shown):
        made = next(e[name] for e in errors if name in e)
        cells = (f"{e[name].error:.1e}" if name in e else "·" for e in errors)
        found.add_row(shorten(name, _NAME_WIDTH), shorten(made.op_type, _NAME_WIDTH), *cells)
    return found


def _in_order(modes: Sequence[ModeReport]) -> list[str]:
    """All tensors: those of the first mode, and between them what only others have."""
    names: list[str] = []
    for m in modes:
        at = 0
        for t in m.tensors:
            if t.name in names:
                at = names.index(t.name) + 1
            else:
                names.insert(at, t.name)
                at += 1
    return names


def _error(t: TensorError | None) -> str:
    return "-" if t is None else f"{t.error:.1e}"
