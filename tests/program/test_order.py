"""Streams and events make an order: who records, circles, races."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from npusim.api import compile_graph
from npusim.chip import load_chip
from npusim.errors import GraphError
from npusim.ir import DType
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable, verify_executable
from npusim.program.order import members, ordered_before, recorders


@dataclass(frozen=True)
class Item:
    """A task, as far as order goes."""

    name: str
    stream: int
    waits: tuple[int, ...] = ()
    records: int | None = None


def test_what_is_over_before_what() -> None:
    tasks = [Item("a", 0, (), 1), Item("b", 1, (1,)), Item("c", 0), Item("d", 1, (), 2),
             Item("e", 0, (2,))]  # fmt: skip
    before = [list(members(b)) for b in ordered_before(tasks)]
    assert before == [[], [0], [0], [0, 1], [0, 1, 2, 3]]


def test_an_event_may_be_recorded_later_in_the_list() -> None:
    tasks = [Item("late", 0, (1,)), Item("early", 1, (), 1)]
    assert ordered_before(tasks) == [0b10, 0]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([Item("a", 0, (3,))], "'a' waits for event 3, which no task records"),
        ([Item("a", 0, (), 1), Item("b", 1, (), 1)], "event 1 is recorded by 'a' and by 'b'"),
        ([Item("a", 0, (1,), 1)], "circle: a"),
        ([Item("a", 0, (2,), 1), Item("b", 1, (1,), 2)], "circle: b → a"),
    ],
)
def test_orders_that_cannot_be(tasks: list[Item], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        ordered_before(tasks)


def two_readers() -> Executable:
    """Two tasks that read one input, and one that adds their results."""
    g = GraphBuilder("two", DType.FLOAT16)
    x = g.input("x", (64, 64))
    a, b = g.node("Softmax", "a", x), g.node("MatMul", "b", x, x)
    g.output(g.node("MatMul", "c", a, b))
    return compile_graph(g.finish(), load_chip("ascend910a"))


def test_tasks_that_share_memory_must_be_in_order() -> None:
    exe = two_readers()
    apart = replace(exe.tasks[1], stream=1, records=0)
    exe.tasks = [exe.tasks[0], apart, replace(exe.tasks[2], waits=(0,))]
    assert verify_executable(exe) is exe  # both only read x
    assert recorders(exe.tasks) == {0: 1}
    exe.tasks[2] = replace(exe.tasks[2], waits=())
    with pytest.raises(GraphError, match="'b' on stream 1 and 'c' on stream 0 both touch '"):
        verify_executable(exe)
