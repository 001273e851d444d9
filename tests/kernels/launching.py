"""Run one kernel launch at tile level and compare it with the operator's semantics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import npusim.kernels  # noqa: F401  (says where kernels are)
from npusim.chip import load_chip
from npusim.chip.spec import ChipSpec
from npusim.ir import DType, EpilogueStep, Layout, Node, TensorType, pack, unpack
from npusim.machine.launch import LaunchResult, run_tile_level, time_launch
from npusim.ops import compute_node, infer_node
from npusim.program.kernel import KernelArgs, OperandSpec, Plan, choose_plan

Pick = Callable[[str, KernelArgs, ChipSpec], Plan]  #: of a kernel, a launch and a chip
CHIPS = {n: load_chip(n) for n in ("toy", "ascend910a", "ascend910b2")}


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Values of an element type: normal floats, small integers, coins."""
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        return rng.integers(0, 100, shape).astype(kind)
    return rng.standard_normal(shape).astype(np.float32).astype(kind)


def execute(
    chip: ChipSpec,
    kernel: str,
    node: Node,
    inputs: Sequence[np.ndarray | None],
    types: Sequence[TensorType],
    layouts: Sequence[Layout],
    attrs: dict[str, Any],
    pick: Pick = choose_plan,
) -> tuple[list[np.ndarray], Plan]:
    """The outputs (logical) of a launch at tile level; also times it with both engines."""
    specs = [
        None if a is None else OperandSpec(a.shape, DType.of(a.dtype), lay)
        for a, lay in zip(inputs, layouts[: len(inputs)], strict=True)
    ]
    outs = [
        OperandSpec(t.shape, t.dtype, lay)
        for t, lay in zip(types, layouts[len(inputs) :], strict=True)
    ]
    args = KernelArgs(
        node.op_type, tuple(specs), tuple(outs), tuple(sorted(attrs.items())), node.epilogue
    )
    plan = pick(kernel, args, chip)
    limit = chip.vector_cores()
    assert 1 <= plan.block_dim <= limit
    assert sum(n for _, n in plan.classes) == plan.block_dim
    stored = [
        None if a is None else np.ascontiguousarray(pack(a, lay))
        for a, lay in zip(inputs, layouts[: len(inputs)], strict=True)
    ]
    results = [np.full(o.storage_shape, 77, o.dtype.np) for o in outs]
    run_tile_level(chip, kernel, args, plan, [*stored, *results])
    fast = time_launch(chip, kernel, args, plan, fold=False)
    assert fast.cycles == time_launch(chip, kernel, args, plan, engine="simpy").cycles
    for r, o in zip(results, outs, strict=True):
        if o.layout is not Layout.ND:  # padding of the layout stays zero
            np.testing.assert_array_equal(r, pack(unpack(r, o.shape, o.layout), o.layout))
    return [unpack(r, o.shape, o.layout) for r, o in zip(results, outs, strict=True)], plan


def check_operator(
    chip: ChipSpec,
    kernel: str,
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    attrs: dict[str, Any],
    constants: Sequence[np.ndarray] = (),
    launch_attrs: dict[str, Any] | None = None,
    layout: Layout = Layout.ND,
    layouts: Sequence[Layout] | None = None,
    n_outputs: int = 1,
    epilogue: tuple[EpilogueStep, ...] = (),
    rtol: float = 0.0,
    atol: float = 0.0,
    pick: Pick = choose_plan,
) -> Plan:
    """Tile level against `compute_node`; exact unless a tolerance is given.

    Args:
        constants: inputs of the operator that a launch carries as attributes (`launch_attrs`).
        layouts: of inputs then outputs, when they are not all `layout`.
    """
    names = tuple(f"x{i}" for i in range(len(inputs) + len(constants)))
    node = Node("n", op_type, names, tuple(f"y{i}" for i in range(n_outputs)), attrs, epilogue)
    fused = {s.operand for s in epilogue}
    full = [*inputs, *constants]
    main = [a for i, a in enumerate(full) if i not in fused]
    kinds = [None if a is None else TensorType(a.shape, DType.of(a.dtype)) for a in main]
    types = infer_node(node.with_(epilogue=()), kinds, main)
    want = compute_node(node, full, types)
    lays = list(layouts) if layouts else [layout] * (len(inputs) + n_outputs)
    carried = {**attrs, **(launch_attrs or {})}
    got, plan = execute(chip, kernel, node, inputs, types, lays, carried, pick)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        if rtol or atol:
            np.testing.assert_allclose(
                g.astype(np.float64), w.astype(np.float64), rtol=rtol, atol=atol
            )
        else:
            np.testing.assert_array_equal(g, w)
    return plan


def timed(chip: ChipSpec, kernel: str, args: KernelArgs) -> tuple[LaunchResult, Plan]:
    """Cycles of a launch as planned."""
    plan = choose_plan(kernel, args, chip)
    return time_launch(chip, kernel, args, plan), plan
