"""Fixtures that several folders of tests share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings

from npusim.timeline import (
    MemoryUse,
    OpRecord,
    PipeTime,
    RunResult,
    SimulatorSpeed,
    Span,
    TensorCheck,
    Timeline,
    check_timeline,
)

# The same examples every time, for a verdict that is the same every time. Looking for new ones:
# pytest --hypothesis-profile=default
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")

MakeResult = Callable[..., RunResult]

#: name, type, kernel, block dim, cycles without launch, launch, busy by pipe, bound
_OPS = [
    ("/conv1/Conv", "Conv", "conv2d", 30, 41_200, 3_200, {"cube": 19_700, "mte1": 31_000,
     "mte2": 9_000, "vector": 12_400, "mte3": 4_100}, "mte1"),
    ("/maxpool/MaxPool", "MaxPool", "pool", 32, 18_000, 3_200, {"vector": 16_900, "mte2": 6_000,
     "mte3": 2_400}, "vector"),
    ("/layer1/layer1.0/downsample/downsample.0/a_rather_long_name_of_a_node/Conv", "Conv", "conv2d",
     32, 15_100, 3_300, {"cube": 12_900, "mte1": 9_000, "mte2": 5_000}, "cube"),
    ("/fc/Gemm", "Gemm", "matmul", 32, 9_100, 3_200, {"cube": 420, "mte1": 500, "mte2": 8_800},
     "HBM"),
    ("/NonZero", "NonZero", "NonZero", 1, 21_000, 9_000, {}, "aicpu"),
    ("/tiny/Add", "Add", "elementwise", 1, 700, 1_200, {"vector": 90, "mte2": 400, "mte3": 150},
     "launch"),
]  # fmt: skip


def _record(i: int, start: int, stream: int = 0, spans: bool = False) -> OpRecord:
    name, op_type, kernel, blocks, cycles, launch, busy, bound = _OPS[i]
    pipes = {
        pipe: PipeTime(n, (cycles - n) // 2, {"mte2": cycles - n - (cycles - n) // 2})
        for pipe, n in busy.items()
    }
    end, body = start + launch + cycles, start + launch
    share = {"launch": launch, "HBM": 8_900, "aicpu": cycles}.get(bound, busy.get(bound, 0))
    share /= cycles + launch
    found = [
        Span(pipe, f"{pipe}_instruction", body + at, body + at + 7)
        for pipe in busy
        for at in range(0, 70, 7)
    ]
    return OpRecord(
        name, op_type, kernel, "AI_CPU" if bound == "aicpu" else "AI_CORE", blocks, stream, start,
        end, launch, pipes, 700 * cycles, 2_000 * cycles, 4_000 * cycles, bound, share,
        0 if bound == "aicpu" else cycles // 2, {bound: share},
        spans=tuple(found) if spans else (),
    )  # fmt: skip


def _make(
    *,
    clock: float = 0.9e9,
    check: dict[str, TensorCheck] | None = None,
    precision: str = "fp16",
    spans: bool = False,
    streams: int = 1,
) -> RunResult:
    """A hand-made run of six ops; with `spans`, of the first op's pipes."""
    ops, starts = [], [0] * streams
    for i in range(len(_OPS)):
        stream = i % streams
        op = _record(i, starts[stream], stream, spans and i == 0)
        starts[stream] = op.end + 70
        ops.append(op)
    ops.sort(key=lambda op: op.start)
    total = max(op.end for op in ops)
    timeline = check_timeline(Timeline("ascend910a", clock, tuple(ops), total))
    return RunResult(
        model="resnet50",
        chip="ascend910a",
        precision=precision,
        batch=1,
        options={"detail": "fast", "level": "operator", "set": ["hbm.bandwidth=2.4TB/s"]},
        timeline=timeline,
        memory=MemoryUse(67_000_000, 51_100_000, 12_300_000),
        speed=SimulatorSpeed(1.234, 456_789),
        flops=sum(op.flops for op in ops),
        peak_flops=230.4e12,
        peak_hbm=1.2e12,
        outputs={"logits": np.zeros((1, 10), np.float32)},
        check=check or {},
        check_reference="onnxruntime 1.32.0" if check else "",
        notes=["NonZero has no AI Core kernel: it runs on the AI CPU"],
    )


@pytest.fixture
def make_result() -> MakeResult:
    """Makes RunResults without a simulator; keyword arguments as in `_make`."""
    return _make
