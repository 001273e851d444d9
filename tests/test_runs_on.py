"""What `npusim ops` says of each operator follows from what is registered."""

from __future__ import annotations

import pytest

from npusim.compiler.rewrite import becomes, declared_passes
from npusim.compiler.select import kernel_of
from npusim.conformance import runs_on
from npusim.errors import KernelError
from npusim.explore.replay import launches
from npusim.explore.replay.launches import builder_of, kernels_of, known_types, launch_of
from npusim.frontends.recorded import RecordedOp, RecordedTensor
from npusim.ops import has_operator, operator_names
from npusim.program.kernel import kernel_names


@pytest.mark.parametrize(
    ("op_type", "says"),
    [
        ("ConvTranspose", "AI Core: Conv2D"),
        ("LSTM", "AI Core: MatMul"),
        ("LpPool", "AI Core: Pool"),
        ("ScatterND", "AI Core: ScatterRows"),
        ("ReverseSequence", "AI Core: GatherND"),
        ("Trilu", "the operators of its body"),
        ("Einsum", "the operators of its body"),
        ("NPUGetFloatStatus", "AI Core, in replays: FloatStatus"),
        ("LayerNorm", "AI Core, in replays: RowTiles, Norm"),
        ("Reshape", "no task: a view"),
        ("NonZero", "AI CPU"),
        ("Sine", ""),
    ],
)
def test_what_is_said(op_type: str, says: str) -> None:
    assert runs_on(op_type) == says


def test_passes_lead_to_kernels() -> None:
    rewritten = [op for p in declared_passes() for op in p.becomes]
    assert len(rewritten) == len(set(rewritten))
    for op_type in rewritten:
        assert has_operator(op_type) and not kernel_of(op_type)
        assert kernel_of(becomes(op_type)) in kernel_names()


def test_replays_name_kernels_that_there_are() -> None:
    declared = [t for t in known_types() if kernels_of(t)]
    assert {k for t in declared for k in kernels_of(t)} <= set(kernel_names())
    refused = builder_of("DropOutGenMask")
    for op_type in operator_names():  # nothing that a replay times is said to run on the AI CPU
        if builder_of(op_type) not in (None, refused):
            assert runs_on(op_type) != "AI CPU"


def test_a_launch_by_another_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (RecordedTensor("ND", "float16", (4, n)) for n in (32, 16))
    row = RecordedOp("net", "op", "SwiGlu", "AI_VECTOR_CORE", 1, (x,), (y,), 1, 9.0)
    assert launch_of(row).kernel == "Gated"
    monkeypatch.setitem(launches._KERNELS, "SwiGlu", ("Gather",))
    with pytest.raises(KernelError, match="SwiGlu by Gated"):
        launch_of(row)
