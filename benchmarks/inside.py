"""What cannot be seen from outside a process: one measurement, printed as JSON.

    python benchmarks/inside.py functional THREADS
    python benchmarks/inside.py engine

`benchmarks/run.py` starts this several times and takes medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import npusim
from npusim.frontends.onnx_export import save_onnx
from npusim.machine.launch import LaunchResult, time_launch


def functional(threads: int) -> dict[str, float]:
    """ResNet-50, batch 1, fp32: the simulator computing and timing, and onnxruntime computing.

    Simulator times are those of a process's first run, as the report prints them: executing and
    timing all tasks, after weights and inputs are in device memory. onnxruntime's is the median
    of ten inferences after one to warm up. The process's BLAS threads are the caller's affair.
    """
    import onnxruntime as ort

    chip = npusim.load_chip("ascend910a")
    model = npusim.load_model("resnet50", batch=1, precision="fp32")
    exe = npusim.compile_graph(model.graph, chip, precision="fp32")
    inputs = npusim.make_inputs(model)
    timing = npusim.run(exe, chip, timing_only=True)
    computing = npusim.run(exe, chip, inputs=inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.onnx"
        save_onnx(model.graph, path)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.run(None, inputs)
    inference = statistics.median(seconds(lambda: session.run(None, inputs)) for _ in range(10))
    return {
        "simulator_s": computing.speed.wall_s,
        "timing_s": timing.speed.wall_s,
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


def seconds(action: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    found = functional(int(rest[0])) if what == "functional" else engine()
    print(json.dumps(found))
