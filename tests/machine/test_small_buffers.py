"""No legal shape fails to tile: whatever the buffers hold, programs fit them, or say what would.

Every kernel, every family of operators and whole models, on chips with smaller buffers. A tiling
that the kernel gives must build: its blocks' programs are run through without being timed.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import islice

import pytest
from one_operator import FAMILIES
from random_launches import MAKERS
from small_models import SMALL

from npusim.chip import load_chip
from npusim.chip.spec import ChipSpec
from npusim.compiler import CompileOptions, compile_graph
from npusim.errors import UnsupportedError
from npusim.ir import DType
from npusim.models import build_model
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan, get_kernel

NAMES = ("toy", "ascend910a", "ascend910b2", "ascend910b4", "ascend310p3")
SIZES = {
    "ub": (1, 4, 16, 32, 64, 128),
    "l1": (4, 32, 64, 128, 256),
    "l0c": (1, 8, 32, 64),
    "l0a": (1, 4, 16, 32),
    "l0b": (1, 4, 16, 32),
}  #: KiB
LONG = 400  #: instructions of a program that are looked at: all that it allocates comes before


@cache
def reduced(name: str, *sizes: str) -> ChipSpec:
    """The chip with other buffers."""
    return load_chip(name, sizes)


def some_chip(rng: random.Random) -> ChipSpec:
    """Some of the buffers smaller, each about every other time."""
    sizes = [f"core.{b}.size={rng.choice(n)}KiB" for b, n in SIZES.items() if rng.random() < 0.5]
    return reduced(rng.choice(NAMES), *sizes)


def build(name: str, args: KernelArgs, plan: Plan, chip: ChipSpec) -> None:
    """Walk through the programs of a launch: an allocation that does not fit raises."""
    kernel = get_kernel(name)
    for phase in range(plan.phases):
        for block, _ in plan.classes[:3]:
            for member in kernel.members(args, chip, plan, block, phase, False):
                for _ in islice(member.program, LONG):
                    pass


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_tiling_of_a_kernel_fits(name: str) -> None:
    kernel, found = get_kernel(name), 0
    for seed in range(40):
        rng = random.Random(f"{name} {seed}")
        chip, args = some_chip(rng), MAKERS[name](rng, rng.choice((8, 30, 100)))
        if kernel.refuse(args, chip):
            continue
        tilings = list(kernel.tilings(args, chip))
        for tiling in rng.sample(tilings, min(2, len(tilings))):
            build(name, args, kernel.plan(args, chip, tiling), chip)
        found += bool(tilings)
        if found == 5:
            break
    assert found


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_compile_and_fit(family: str) -> None:
    for seed in range(8):
        rng = random.Random(f"{family} {seed}")
        graph = FAMILIES[family](rng.choice).graph()
        chip = some_chip(rng)
        options = CompileOptions(rng.choice(("must_keep_origin_dtype", "fp16")))
        for task in compile_graph(graph, chip, options).tasks:
            if task.call:
                build(task.call.kernel, task.call.args, task.call.plan, chip)


MODELS: dict[str, dict[str, int]] = {
    "bert-tiny": {},
    "resnet18": {"height": 64, "width": 64},
    **{name: SMALL[name] for name in ("mobilenetv2", "llama", "llama-decode")},
}


@pytest.mark.parametrize("share", [2, 4])
@pytest.mark.parametrize("name", ["ascend910a", "ascend910b4"])
@pytest.mark.parametrize("model", MODELS)
def test_models_compile_and_fit(model: str, name: str, share: int) -> None:
    """Halved and quartered, and nothing more on the AI CPU than with whole buffers."""
    whole = load_chip(name)
    size = {b: getattr(whole.core, b).size // share for b in ("ub", "l1", "l0c")}
    chip = reduced(name, *(f"core.{b}.size={n}B" for b, n in size.items()))
    graph = build_model(model, **MODELS[model])
    usual, exe = (compile_graph(graph, c, CompileOptions("fp16")) for c in (whole, chip))
    for task in exe.tasks:
        if task.call:
            build(task.call.kernel, task.call.args, task.call.plan, chip)
    assert sum(not t.call for t in exe.tasks) == sum(not t.call for t in usual.tasks)


def test_what_does_not_fit_names_buffers_that_do() -> None:
    x, half = OperandSpec((4, 100_000), DType.FLOAT16), OperandSpec((100_000,), DType.FLOAT16)
    args = KernelArgs("RmsNorm", (x, half), (x, OperandSpec((4, 1), DType.FLOAT32)))
    with pytest.raises(UnsupportedError) as error:
        choose_plan("RmsNorm", args, load_chip("ascend910a"))
    needed = error.value.what.split("the smallest that do: ")[1]
    large = load_chip("ascend910a", [needed])
    build("RmsNorm", args, choose_plan("RmsNorm", args, large), large)
    buffer, size = needed.split("=")
    smaller = f"{buffer}={int(size.removesuffix('MiB')) * 512}KiB"
    with pytest.raises(UnsupportedError):
        choose_plan("RmsNorm", args, load_chip("ascend910a", [smaller]))


def test_several_buffers_are_named_where_one_does_not_do() -> None:
    x, w, y = (OperandSpec(s, DType.FLOAT16) for s in ((64, 64), (64, 64), (64, 64)))
    args = KernelArgs("MatMul", (x, w), (y,))
    tight = load_chip("toy", ["core.ub.size=512B", "core.l0a.size=512B"])
    with pytest.raises(UnsupportedError) as error:
        choose_plan("MatMul", args, tight)
    needed = error.value.what.split("the smallest that do: ")[1].split(", ")
    assert [n.split("=")[0] for n in needed] == ["core.ub.size", "core.l0a.size"]
    large = load_chip("toy", needed)
    build("MatMul", args, choose_plan("MatMul", args, large), large)
