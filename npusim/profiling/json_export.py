"""A run as JSON: the data behind the report, under keys that stay."""

from __future__ import annotations

import math
from pathlib import Path

import npusim
from npusim.profiling.host_use import host_and_device
from npusim.profiling.units import unit_use
from npusim.timeline import PIPES, HostUse, OpRecord, OpTotals, RunResult, Timeline


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
        "steps": timeline.steps,
        "partial": timeline.partial,
        "run_by": {
            u.unit.lower().replace(" ", "_"): {
                "tasks": u.tasks,
                "time_share": u.time,
                "flops_share": u.flops,
            }
            for u in unit_use(timeline)
        },
        "ops": [_op(timeline, op) for op in timeline.ops],
        "totals": [_totals(timeline, totals) for totals in timeline.totals],
        "host": None if timeline.host is None else _host(timeline, timeline.host),
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
            "computing_s": speed.computing_s,
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
        "starved_us": timeline.us(op.starved),
        "step": op.step,
    }


def _totals(timeline: Timeline, totals: OpTotals) -> dict[str, object]:
    return {
        "op_type": totals.op_type,
        "kernel": totals.kernel,
        "core_type": totals.core_type,
        "count": totals.count,
        "time_us": timeline.us(totals.cycles),
        "launch_us": timeline.us(totals.launch),
        "roofline_us": timeline.us(totals.roofline),
        "waited_us": timeline.us(totals.waited),
        "queued_us": timeline.us(totals.queued),
        "starved_us": timeline.us(totals.starved),
        "flops": totals.flops,
        "bytes_hbm": totals.bytes_hbm,
        "bytes_l2": totals.bytes_l2,
        "pipes": {pipe: timeline.us(busy) for pipe, busy in totals.busy.items()},
        "bound_us": {bound: timeline.us(cycles) for bound, cycles in totals.bounds.items()},
    }


def _host(timeline: Timeline, host: HostUse) -> dict[str, object]:
    found = host_and_device(timeline)
    return {
        "exec": host.exec,
        "sink_size": host.sink_size,
        "busy_us": timeline.us(host.busy),
        "queue_full_us": timeline.us(host.queue_full),
        "waiting_us": timeline.us(host.waiting),
        "device_busy_us": timeline.us(found.device_busy),
        "bubbles_us": {b.cause: timeline.us(b.cycles) for b in found.bubbles},
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
