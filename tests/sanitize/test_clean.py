"""No false reports: random launches of every kernel, and whole models, have no findings."""

from __future__ import annotations

from random import Random

import pytest
from random_launches import MAKERS, random_plan

from npusim import api
from npusim.chip import load_chip
from npusim.sanitize import sanitize_executable, sanitize_launch
from npusim.sanitize.kernel_level import aliases_of

CHIPS = {n: load_chip(n) for n in ("toy", "ascend910a", "ascend910b2", "ascend310p3")}


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_random_launches(name: str) -> None:
    """On the toy and another chip, the first launch of a row of seeds that the kernel takes.

    `python tests/sanitize/test_clean.py 100` draws 100 launches of each kernel.
    """
    other = list(CHIPS)[1 + sorted(MAKERS).index(name) % (len(CHIPS) - 1)]
    seeds = range(20)
    assert check_random(name, ["toy", other], seeds, 1) or check_random(name, list(CHIPS), seeds, 1)


def check_random(name: str, chips: list[str], seeds: range, enough: int) -> int:
    """Launches checked: at most `enough` on each chip."""
    checked = 0
    for chip in chips:
        here = 0
        for seed in seeds:
            rng = Random(seed)
            args = MAKERS[name](rng, rng.choice([8, 8, 16]))
            plan = random_plan(rng, name, args, CHIPS[chip])
            if plan is None:
                continue
            found = sanitize_launch(CHIPS[chip], name, args, plan)
            assert not found, "\n".join(map(str, found))
            here += 1
            if here == enough:
                break
        checked += here
    return checked


@pytest.mark.parametrize(
    ("model", "chip"),
    [
        ("bert-tiny", "toy"),
        ("bert-tiny", "ascend910b2"),
        ("resnet18", "ascend910a"),
        ("resnet18", "ascend910b2"),
        ("gemm-1024", "ascend310p3"),
    ],
)
def test_models(model: str, chip: str) -> None:
    spec, loaded = CHIPS[chip], api.load_model(model)
    exe = api.compile_graph(loaded.graph, spec, precision=loaded.precision)
    calls = {(t.call.kernel, t.call.args) for t in exe.tasks if t.call is not None}
    stages: list[tuple[str, int, int]] = []
    report = sanitize_executable(exe, spec, lambda *stage: stages.append(stage))
    assert not report.findings, str(report)
    assert report.launches >= len(calls)
    assert report.kernels == len({kernel for kernel, _ in calls})
    assert stages[-1] == ("sanitize", report.launches, report.launches)
    assert str(report) == (
        f"sanitizer: {report.launches} launches of {report.kernels} kernels checked, no findings"
    )


def test_results_in_place_of_operands_are_known() -> None:
    """An input that a result overwrites is watched as the output that it is."""
    loaded = api.load_model("bert-tiny")
    exe = api.compile_graph(loaded.graph, CHIPS["toy"], precision=loaded.precision)
    found = {task.name: aliases_of(task, exe.buffers) for task in exe.tasks if task.call}
    in_place = {name: aliases for name, aliases in found.items() if aliases}
    assert 0 < len(in_place) < len(found)
    for task in exe.tasks:
        for index, (output, shift) in in_place.get(task.name, {}).items():
            result = exe.buffers[task.outputs[output - len(task.inputs)]]
            assert exe.buffers[task.inputs[index]].address == result.address + shift


if __name__ == "__main__":
    import sys

    count = int(sys.argv[1])
    for kernel in sorted(MAKERS):
        print(kernel, check_random(kernel, list(CHIPS), range(3 * count), count))
