"""Kernels by name, the choice of a plan, classes of blocks, executables that are not sound."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import npusim.kernels  # noqa: F401
from npusim.chip import load_chip
from npusim.errors import GraphError, UnsupportedError
from npusim.ir import DType, Layout
from npusim.program.executable import Buffer, Executable, MemoryPlan, verify_executable
from npusim.program.kernel import (
    KernelArgs,
    KernelDef,
    OperandSpec,
    choose_plan,
    get_kernel,
    group_blocks,
    kernel,
    kernel_names,
)

F16, F32 = DType.FLOAT16, DType.FLOAT32


def product(dtype: DType, *shapes: tuple[int, ...]) -> KernelArgs:
    a, b, c = (OperandSpec(s, dtype) for s in shapes)
    return KernelArgs("MatMul", (a, b), (c,))


def test_the_index_is_what_the_modules_register() -> None:
    """In a process of its own: nothing but the package's modules is imported there."""
    code = """
import pkgutil
from importlib import import_module
import npusim.kernels as package
from npusim.program import kernel
assert not kernel._KERNELS, "kernels are imported before they are asked for"
assert kernel.kernel_names() == sorted(package.MODULES)
for module in pkgutil.iter_modules(package.__path__):
    import_module(f"{package.__name__}.{module.name}")
found = {name: cls.__module__.rpartition(".")[2] for name, cls in kernel._KERNELS.items()}
assert found == package.MODULES, set(found.items()) ^ set(package.MODULES.items())
assert list(package.MODULES) == sorted(package.MODULES)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_is_taken_once() -> None:
    before = kernel_names()
    with pytest.raises(ValueError, match="'MatMul' is registered twice"):
        kernel("MatMul")(KernelDef)
    assert kernel_names() == before
    assert get_kernel("MatMul").name == "MatMul"


def test_an_unknown_kernel_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnsupportedError) as error:
        get_kernel("Softmaxx")
    assert "Softmaxx" in error.value.what
    assert "MatMul" in error.value.allowed
    assert "'Softmax'" in error.value.fix


def test_a_refusal_states_kernel_shapes_chip_and_reason() -> None:
    args = product(F32, (20, 30), (30, 40), (20, 40))
    with pytest.raises(UnsupportedError) as error:
        choose_plan("MatMul", args, load_chip("ascend910a"))
    for part in ("MatMul", "(20, 30), (30, 40), (20, 40)", "ascend910a", "not float32"):
        assert part in error.value.what


def test_no_tiling_that_fits_is_an_error() -> None:
    args = product(F16, (64, 64), (64, 64), (64, 64))
    tight = load_chip("toy", ["core.ub.size=512B"])
    with pytest.raises(UnsupportedError, match="on toy: no tiling fits the on-chip buffers"):
        choose_plan("MatMul", args, tight)


def test_the_plan_is_the_estimates_minimum() -> None:
    chip, args = load_chip("ascend910a"), product(F16, (300, 300), (300, 300), (300, 300))
    kind = get_kernel("MatMul")
    best = min(kind.estimate(args, chip, t) for t in kind.tilings(args, chip))
    plan = choose_plan("MatMul", args, chip)
    assert kind.estimate(args, chip, plan.tiling) == best
    assert plan == kind.plan(args, chip, plan.tiling)


def test_blocks_are_grouped_by_key() -> None:
    assert group_blocks(["a", "a", "b", "a", "c", "b"]) == ((0, 3), (2, 2), (4, 1))
    assert group_blocks([]) == ()


def test_operands_and_attributes() -> None:
    image = OperandSpec((1, 3, 4, 4), F16, Layout.NC1HWC0)
    assert (image.storage_shape, image.nbytes) == ((1, 1, 4, 4, 16), 512)
    args = KernelArgs("Conv", (image, None), (image,), (("group", 1),))
    assert args.operands == (image, None, image)
    assert args.attr("group") == 1
    with pytest.raises(KeyError):
        args.attr("pads")


def executable() -> Executable:
    buffers = {"x": Buffer("x", 0, (4, 4), F16), "y": Buffer("y", 512, (4, 4), F16)}
    plan = MemoryPlan(1024, 0, 64, 64)
    return Executable("e", "toy", "fp16", [], buffers, {}, ["x"], ["y"], plan)


def test_buffers_lie_aligned_within_the_arena() -> None:
    exe = executable()
    assert verify_executable(exe) is exe
    for address in (100, 1024):
        exe.buffers["y"] = replace(exe.buffers["y"], address=address)
        with pytest.raises(GraphError, match=f"buffer 'y' at {address}"):
            verify_executable(exe)
