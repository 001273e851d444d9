"""What cannot be seen from outside a process: one measurement, printed as JSON.

    python benchmarks/inside.py functional MODEL THREADS
    python benchmarks/inside.py engine
    python benchmarks/inside.py scale full|summary
    python benchmarks/inside.py sweep POINTS

`benchmarks/run.py` starts this several times and takes medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import npusim
from npusim.frontends.onnx_export import save_onnx
from npusim.machine.device import Device
from npusim.machine.host import HostPlan, HostProcess
from npusim.machine.launch import LaunchResult, time_launch
from npusim.machine.loaded import LoadedExecutable
from npusim.machine.recorder import KeepAll, KeepTotals
from npusim.timeline import Timeline, check_timeline

TASKS, STREAMS = 100_000, 8  #: of `scale`


def functional(name: str, threads: int) -> dict[str, float]:
    """A model at batch 1, fp32: the simulator computing and timing, and onnxruntime computing.

    Simulator times are those of a process's first run, as the report prints them: timing all
    tasks, and of that the time in which numbers are computed, after weights and inputs are in
    device memory. onnxruntime's is the median of ten inferences after one to warm up. The
    process's BLAS threads are the caller's affair.
    """
    import onnxruntime as ort

    chip = npusim.load_chip("ascend910a")
    model = npusim.load_model(name, batch=1, precision="fp32")
    exe = npusim.compile_graph(model.graph, chip, precision="fp32")
    inputs = npusim.make_inputs(model)
    speed = npusim.run(exe, chip, inputs=inputs).speed
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save_onnx(model.graph, path)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.run(None, inputs)
    inference = statistics.median(seconds(lambda: session.run(None, inputs)) for _ in range(10))
    return {
        "simulator_s": speed.wall_s,
        "computing_s": speed.computing_s,
        "onnxruntime_s": inference,
    }


def engine() -> dict[str, float]:
    """One 1024³ MatMul launch on the SimPy cores, and on the scoreboard without and with folding.

    Rates are per second of wall time: SimPy events, and instructions of the simulated cores.
    """
    chip = npusim.load_chip("ascend910a")
    model = npusim.load_model("gemm-1024")
    exe = npusim.compile_graph(model.graph, chip)
    call = next(t.call for t in exe.tasks if t.uses_cube and t.call is not None)
    launch = (chip, call.kernel, call.args, call.plan)
    runs: dict[str, Callable[[], LaunchResult]] = {
        "simpy": lambda: time_launch(*launch, engine="simpy"),
        "scoreboard": lambda: time_launch(*launch, fold=False),
        "folded": lambda: time_launch(*launch),
    }
    out: dict[str, float] = {}
    for name, run in runs.items():
        started = time.perf_counter()
        result = run()
        wall = time.perf_counter() - started
        instructions = sum(core.instructions for core in result.cores)
        out[f"{name}_instructions_per_s"] = instructions / wall
        out[f"{name}_events_per_s"] = result.events / wall
    return out


def scale(keep: str) -> dict[str, float]:
    """A hundred thousand tasks: ResNet-50 over and over, on eight streams side by side.

    Each stream has a copy of the model in memory of its own; all kernels are replayed.
    """
    chip = npusim.load_chip("ascend910a")
    exe = npusim.compile_graph(npusim.load_model("resnet50").graph, chip)
    steps = -(-TASKS // (STREAMS * len(exe.tasks)))
    recorder = KeepAll() if keep == "full" else KeepTotals()
    device = Device(chip, recorder)
    for number in range(STREAMS):
        own = replace(exe, tasks=[replace(t, stream=number) for t in exe.tasks])
        loaded = LoadedExecutable(own, base=number * exe.memory.arena_bytes)
        HostProcess(device, loaded, HostPlan(steps=steps))
    started = time.perf_counter()
    device.run()
    ops = recorder.ops()
    if ops:
        timeline = Timeline(chip.name, chip.clock, ops, max(op.end for op in ops))
        check_timeline(timeline, chip.hbm_rate, chip.l2_rate)
    assert recorder.count >= TASKS
    return {"wall_s": time.perf_counter() - started, "tasks": recorder.count}


def sweep(points: int) -> dict[str, float]:
    """CPU seconds of a point of `design-space`, in one process: with reuse, and from scratch.

    The first `points` of its thousand are taken, as one of two workers would get them; from
    scratch, every tenth of those.
    """
    from npusim.explore.sweep import Sweep
    from npusim.explore.sweep.evaluate import Evaluator

    jobs = Sweep("design-space").plan()[:points]
    spent = {}
    for name, chosen in (("reused", jobs), ("fresh", jobs[:: max(1, points // 10)])):
        evaluator = Evaluator(fresh=name == "fresh")
        started = time.process_time()
        for job in chosen:
            assert evaluator.row(job)["status"] == "ok"
        spent[name] = (time.process_time() - started) / len(chosen)
    return {
        "reused_s": spent["reused"],
        "fresh_s": spent["fresh"],
        "thousand_on_two_cores_s": spent["reused"] * 1000 / 2,
    }


def seconds(action: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    measurements: dict[str, Callable[[], dict[str, float]]] = {
        "functional": lambda: functional(rest[0], int(rest[1])),
        "engine": engine,
        "scale": lambda: scale(rest[0]),
        "sweep": lambda: sweep(int(rest[0])),
    }
    print(json.dumps(measurements[what]()))
