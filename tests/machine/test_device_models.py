"""Whole models on the device: the same timeline everywhere; L2, progress, spans, AI CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from npusim import api
from npusim.chip import load_chip
from npusim.compiler import CompileOptions
from npusim.ir import DType, Graph
from npusim.machine.l2 import L2Cache
from npusim.machine.tasks import Detail
from npusim.models import build_model, random_inputs
from npusim.models.builder import GraphBuilder
from npusim.program.executable import Executable

ROOT = Path(__file__).parents[2]


def _compiled(model: str, chip: str = "ascend910a", **options: int) -> Executable:
    graph = build_model(model, **options)
    return api.compile_graph(graph, load_chip(chip), precision="fp16")


def _softmaxes(n: int, rows: int = 64) -> Graph:
    g = GraphBuilder("softmaxes")
    x = g.input("x", (rows, 64))
    for i in range(n):
        x = g.node("Softmax", f"s{i}", x)
    g.output(x)
    return g.finish()


@pytest.mark.parametrize("chip", ["ascend910a", "ascend910b2"])
@pytest.mark.parametrize("model", ["resnet50", "bert-base"])
def test_details_agree(model: str, chip: str) -> None:
    """Within 2 % in all, and 10 % for each operator."""
    exe = _compiled(model, chip)
    fast = api.run(exe, load_chip(chip), timing_only=True).timeline
    full = api.run(exe, load_chip(chip), timing_only=True, detail="full").timeline
    assert abs(fast.total_cycles / full.total_cycles - 1) < 0.02
    for a, b in zip(fast.ops, full.ops, strict=True):
        assert a.name == b.name and abs((a.end - a.start) / (b.end - b.start) - 1) < 0.10
    assert not any(op.replayed for op in full.ops)


# -- determinism ----------------------------------------------------------------------------------

_PRINT = """
import hashlib
from npusim import api
from npusim.chip import load_chip
chip = load_chip("ascend910a")
model = api.load_model("bert-tiny", shapes={"seq": (32,)})
exe = api.compile_graph(model.graph, chip)
result = api.run(exe, chip, inputs=api.make_inputs(model), trace_ops=[exe.tasks[5].name])
places = sorted((b.name, b.address) for b in exe.buffers.values())
outputs = [v.tobytes() for _, v in sorted(result.outputs.items())]
print(hashlib.sha256(repr((result.timeline, places, outputs)).encode()).hexdigest())
"""


def test_processes_give_the_same_bits() -> None:
    seen = set()
    for seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            [sys.executable, "-c", _PRINT], env=env, capture_output=True, text=True, check=True
        )
        seen.add(ran.stdout)
    assert len(seen) == 1 and len(seen.pop().strip()) == 64


def test_two_runs_give_the_same_timeline() -> None:
    exe, chip = _compiled("resnet18", height=64, width=64), load_chip("ascend910a")
    first = api.run(exe, chip, timing_only=True).timeline
    assert api.run(exe, chip, timing_only=True).timeline == first
    inputs = random_inputs(build_model("resnet18", height=64, width=64))
    assert api.run(exe, chip, inputs=inputs).timeline == first


# -- L2, progress, spans ---------------------------------------------------------------------------


def test_what_does_not_fit_l2_goes_through_hbm() -> None:
    chip = load_chip("ascend910a")
    apart = CompileOptions("fp32", level=1)
    exe = api.compile_graph(_softmaxes(4, rows=2**18), chip, options=apart)  # 64 MiB each
    ops = api.run(exe, chip, timing_only=True).timeline.ops
    size = 2**18 * 64 * 4
    # Each launch but the first finds, of the tensor that it reads, what the last one left: half
    # of the cache, and that is pushed out on the way. Residency is told in sixteenths.
    cache = L2Cache(chip.l2.size)
    moved = 0.0
    for task in exe.tasks:
        starts = [exe.buffers[name].address for name in (*task.inputs, *task.outputs)]
        touched = cache.touch([(start, start + size) for start in starts])
        leaving = touched.evicted / sum(touched.missing)
        read, written = touched.missing[0], touched.missing[1] * leaving
        moved += sum(round(16 * n / size) / 16 * size for n in (read, written))
    assert sum(op.bytes_hbm for op in ops) == moved


def test_progress() -> None:
    chip, seen = load_chip("ascend910a"), list[tuple[str, int, int]]()
    apart = CompileOptions("fp32", level=1)
    exe = api.compile_graph(_softmaxes(4), chip, options=apart)
    api.run(exe, chip, timing_only=True, progress=lambda *step: seen.append(step))
    assert seen == [("run", i, 4) for i in (1, 2, 3, 4)]


@pytest.mark.parametrize("detail", ["fast", "full"])
def test_spans_lie_inside_their_op(detail: Detail) -> None:
    """Tracing an operator changes no cycle, and later replays of it carry no spans."""
    exe, chip = _compiled("bert-tiny", seq=32), load_chip("ascend910a")
    chosen = next(t.name for t in exe.tasks if t.call and t.call.kernel == "MatMul")
    plain = api.run(exe, chip, timing_only=True, detail=detail).timeline
    traced = api.run(exe, chip, timing_only=True, detail=detail, trace_ops=[chosen]).timeline
    assert [(o.start, o.end) for o in traced.ops] == [(o.start, o.end) for o in plain.ops]
    assert [o.name for o in traced.ops if o.spans] == [chosen]
    (op,) = (o for o in traced.ops if o.spans)
    assert not op.replayed and {"cube", "mte1", "mte2", "mte3"} <= {s.track for s in op.spans}
    for pipe in {s.track for s in op.spans}:
        spans = sorted((s.start, s.end) for s in op.spans if s.track == pipe)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))  # a pipe does one thing at a time
        assert op.start + op.launch <= spans[0][0] and spans[-1][1] <= op.end
        assert sum(b - a for a, b in spans) == op.pipes[pipe].busy


# -- AI CPU ---------------------------------------------------------------------------------------


def test_ai_cpu_tasks() -> None:
    """Integers of 64 bits: launch plus bytes over the rate, input from HBM, result in L2."""
    g = GraphBuilder("integers")
    minus = g.node("Neg", "minus", g.input("x", (1024, 64), DType.INT64))
    g.output(g.node("Relu", "relu", g.node("Cast", "float", minus, to="float32")))
    chip = load_chip("ascend910a")
    exe = api.compile_graph(g.finish(), chip, precision="fp32")
    kinds = {t.name: t.kind.value for t in exe.tasks}
    assert kinds == {"minus": "AI_CPU", "float": "AI_CPU", "relu": "AI_CORE"}
    assert all("AI CPU" in note for note in exe.notes) and len(exe.notes) == 2
    x = np.arange(-(2**15), 2**15).reshape(1024, 64)
    result = api.run(exe, chip, inputs={"x": x})
    np.testing.assert_array_equal(result.outputs["relu"], np.maximum(-x, 0))
    first, cast, relu = result.timeline.ops
    assert first.bound == cast.bound == "aicpu" and relu.bound != "aicpu"
    body = chip.cycles(2 * x.nbytes / chip.aicpu.rate)
    assert first.end - first.start == chip.cycles(chip.aicpu.launch) + body
    assert first.bytes_hbm == x.nbytes and cast.bytes_hbm == relu.bytes_hbm == 0
