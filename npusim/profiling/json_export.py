"""A run as JSON: the data behind the report, under keys that stay."""

from __future__ import annotations

import math
from pathlib import Path

import npusim
from npusim.timeline import PIPES, OpRecord, RunResult, Timeline


def result_json(result: RunResult) -> dict[str, object]:
    """The run in plain JSON types; times in µs. A value that is not finite becomes None."""
    timeline, memory, speed = result.timeline, result.memory, result.speed
    data = {
        "npusim_version": npusim.__version__,
        "chip": result.chip,
        "workload": result.model,
        "batch": result.batch,
        "precision": result.precision,
        "options": result.options,
        "total_cycles": timeline.total_cycles,
        "total_time_us": timeline.total_us,
        "throughput_per_s": result.throughput,
        "achieved_tflops": result.achieved_tflops,
        "achieved_gbps": result.achieved_gbps,
        "ops": [_op(timeline, op) for op in timeline.ops],
        "memory": {
            "peak_bytes": memory.peak_bytes,
            "weight_bytes": memory.weight_bytes,
            "activation_bytes": memory.activation_bytes,
        },
        "check": {
            name: {
                "max_abs_err": check.max_abs_err,
                "max_rel_err": check.max_rel_err,
                "cosine": check.cosine,
            }
            for name, check in result.check.items()
        },
        "sanitizer": result.sanitizer,
        "simulator": {
            "wall_s": speed.wall_s,
            "events": speed.events,
            "events_per_s": speed.events_per_s,
        },
    }
    return {key: _plain(value) for key, value in data.items()}


def _op(timeline: Timeline, op: OpRecord) -> dict[str, object]:
    return {
        "name": op.name,
        "op_type": op.op_type,
        "kernel": op.kernel,
        "core_type": op.core_type,
        "block_dim": op.block_dim,
        "start_us": timeline.us(op.start),
        "duration_us": timeline.us(op.cycles),
        "bound": op.bound,
        "bound_share": op.bound_share,
        "roofline_us": timeline.us(op.roofline),
        "flops": op.flops,
        "bytes_hbm": op.bytes_hbm,
        "bytes_l2": op.bytes_l2,
        "pipes": {p: timeline.us(op.pipes[p].busy) if p in op.pipes else 0.0 for p in PIPES},
        "stream": op.stream,
        "waited_us": timeline.us(op.waited),
        "queued_us": timeline.us(op.queued),
    }


def _plain(value: object) -> object:
    """`value` in dict, list, str, int, float, bool and None; numpy scalars lose their type.

    Raises:
        TypeError: a type that JSON has no form for.
    """
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | Path):  # a str enum too
        return str(getattr(value, "value", value))
    if hasattr(value, "item"):
        return _plain(value.item())
    raise TypeError(f"{type(value).__name__} {value!r} has no form in JSON")
