"""Run a kernel at tile level and the operator in numpy, on the same random operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npusim.chip import ChipSpec, load_chip
from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType, pack, unpack
from npusim.kernels import elementwise  # noqa: F401
from npusim.machine.launch import run_tile_level
from npusim.ops import compute_node
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan, get_kernel

CHIPS: dict[str, ChipSpec] = {n: load_chip(n) for n in ("toy", "ascend910a", "ascend910b2")}


def spec_of(a: np.ndarray, layout: Layout = Layout.ND) -> OperandSpec:
    """The operand of a logical array."""
    return OperandSpec(tuple(a.shape), DType.of(a.dtype), layout)


def run(
    chip: str,
    kernel: str,
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    outputs: Sequence[TensorType],
    attrs: dict[str, Any] | None = None,
    epilogue: tuple[EpilogueStep, ...] = (),
    layouts: Sequence[Layout] = (),
    out_layout: Layout = Layout.ND,
    kernel_attrs: dict[str, Any] | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray], Plan]:
    """(tile-level outputs, operator-level outputs, plan).

    Args:
        kernel_attrs: attributes of the kernel's arguments, when not those of the operator.
    """
    attrs = attrs or {}
    layouts = layouts or [Layout.ND] * len(inputs)
    specs = tuple(
        None if a is None else spec_of(a, layout) for a, layout in zip(inputs, layouts, strict=True)
    )
    out_specs = tuple(OperandSpec(t.shape, t.dtype, out_layout) for t in outputs)
    given = attrs if kernel_attrs is None else kernel_attrs
    args = KernelArgs(op_type, specs, out_specs, tuple(sorted(given.items())), epilogue)
    plan = choose_plan(kernel, args, CHIPS[chip])
    definition = get_kernel(kernel)
    cores = CHIPS[chip].vector_cores() if definition.core_type == "AIV" else CHIPS[chip].cores.count
    assert 1 <= plan.block_dim <= cores
    assert sum(n for _, n in plan.classes) == plan.block_dim
    storage: list[np.ndarray | None] = [
        None if a is None else np.ascontiguousarray(pack(a, layout))
        for a, layout in zip(inputs, layouts, strict=True)
    ]
    results = [np.zeros(s.storage_shape, s.dtype.np) for s in out_specs]
    run_tile_level(CHIPS[chip], kernel, args, plan, [*storage, *results])
    got = [unpack(r, s.shape, s.layout) for r, s in zip(results, out_specs, strict=True)]
    names = tuple("" if a is None else f"x{i}" for i, a in enumerate(inputs))
    node = Node("n", op_type, names, tuple(f"y{i}" for i in range(len(outputs))), attrs, epilogue)
    return got, compute_node(node, inputs, outputs), plan


def close(got: np.ndarray, expected: np.ndarray, ulps: float = 2, atol: float = 1e-6) -> None:
    """Equal within some units in the last place of the storage type (exact for integers)."""
    assert got.dtype == expected.dtype
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
        return
    eps = {"float16": 2**-10, "bfloat16": 2**-7}.get(got.dtype.name, 5e-6)
    wide = np.float32
    np.testing.assert_allclose(
        got.astype(wide), expected.astype(wide), rtol=ulps * eps, atol=atol
    )
