"""When tasks are computed: small ones together, in order, all by the end of a run."""

from __future__ import annotations

import numpy as np

import npusim
from npusim.machine.arena import Arena
from npusim.machine.functional import TASKS, FunctionalExecutor
from npusim.machine.run import run_executable
from npusim.program.executable import Executable, Task


class Noting(FunctionalExecutor):
    """Notes what is computed."""

    noted: list[str]

    def execute(self, task: Task, seen: dict[str, np.ndarray] | None = None) -> None:
        super().execute(task, seen)
        self.noted.append(task.name)


def mobile() -> tuple[Executable, npusim.ChipSpec, dict[str, np.ndarray]]:
    chip = npusim.load_chip("ascend910a")
    model = npusim.load_model("mobilenetv2", batch=1)
    return npusim.compile_graph(model.graph, chip), chip, npusim.make_inputs(model)


def ready(exe: Executable, chip: npusim.ChipSpec, inputs: dict[str, np.ndarray]) -> Noting:
    arena = Arena(exe)
    arena.load_constants()
    arena.load_inputs(inputs)
    executor = Noting(exe, chip, arena)
    executor.noted = []
    return executor


def test_small_tasks_wait_for_each_other_and_a_run_ends_with_none_due() -> None:
    exe, chip, inputs = mobile()
    executor = ready(exe, chip, inputs)
    names = [t.name for t in exe.tasks]
    for task in exe.tasks[:10]:
        executor.complete(task)
    assert not executor.noted
    for task in exe.tasks[10:]:
        executor.complete(task)
    assert len(names) - TASKS < len(executor.noted)
    executor.catch_up()
    assert executor.noted == names
    executor.noted = []
    run = run_executable(exe, chip, executor)
    assert executor.noted == names
    assert 0 < run.speed.computing_s < run.speed.wall_s


def test_a_look_at_memory_finds_what_is_over() -> None:
    exe, chip, inputs = mobile()
    executor = ready(exe, chip, inputs)
    first, second = exe.tasks[:2]
    executor.complete(first)
    seen = executor.look(second)
    assert executor.noted == [first.name]
    executor.complete(second, seen)
    assert executor.noted == [first.name, second.name]


def test_elsewhere_nothing_waits_and_the_numbers_are_the_same() -> None:
    exe, chip, inputs = mobile()
    here = ready(exe, chip, inputs)
    memory = np.zeros(exe.memory.arena_bytes, np.uint8)
    elsewhere = Arena(exe, memory)
    elsewhere.load_constants()
    elsewhere.load_inputs(inputs)
    there = here.at({}, memory)
    for number, task in enumerate(exe.tasks):
        there.complete(task)
        assert len(here.noted) == number + 1  # a shallow copy notes in the same list
        here.execute(task)
        here.noted.pop()
    want = npusim.run(exe, chip, inputs=inputs).outputs
    for name, value in elsewhere.outputs().items():
        np.testing.assert_array_equal(value, want[name])


def test_timing_alone_computes_nothing() -> None:
    exe, chip, _ = mobile()
    assert npusim.run(exe, chip, timing_only=True).speed.computing_s == 0
