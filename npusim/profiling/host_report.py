"""The part of the report about host and device: who waits for whom, and the bubbles."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from npusim.profiling.host_use import HostAndDevice, host_and_device
from npusim.profiling.summary import share
from npusim.profiling.tables import table as _table
from npusim.profiling.text import duration, percent, shorten
from npusim.timeline import HostUse, Timeline

_CAUSE_TEXT = {
    "host": "nothing queued: the host",
    "event": "waits for an event",
    "cores": "waits for cores or a unit",
    "gap": "the scheduler's gap",
}


def host_lines(timeline: Timeline, host: HostUse) -> list[tuple[str, str]]:
    """Execution mode, and what host and device spend their time on: (label, text)."""
    found, total = host_and_device(timeline), timeline.total_cycles
    launches = "op by op" if host.exec == "eager" else f"{host.sink_size} steps a launch"
    steps = "1 step" if timeline.steps == 1 else f"{timeline.steps} steps"
    parts = (("busy", host.busy), ("queue full", host.queue_full), ("waits", host.waiting))
    return [
        ("execution", f"{host.exec}, {launches}, {steps}; {_verdict(timeline, found)}"),
        ("host", ", ".join(f"{name} {percent(share(n, total))}" for name, n in parts)),
        (
            "device",
            f"busy {percent(share(found.device_busy, total))}, "
            f"still {percent(share(total - found.device_busy, total))}",
        ),
    ]


def _verdict(timeline: Timeline, found: HostAndDevice) -> str:
    host, device = (timeline.us(n) for n in (found.host_bound, found.device_bound))
    return (
        f"host-bound {duration(host)} (the device waits for the host), "
        f"device-bound {duration(device)} (the host waits)"
    )


def bubble_table(timeline: Timeline) -> Table | None:
    """Why nothing ran on the device, the longest cause first; None when something always did."""
    found = host_and_device(timeline)
    if not found.bubbles:
        return None
    table = _table(
        "Bubbles: nothing runs on the device", "cause", ">count", ">time µs", ">of the run",
        ">longest µs", "before",
    )  # fmt: skip
    for b in sorted(found.bubbles, key=lambda b: -b.cycles):
        part = share(b.cycles, timeline.total_cycles)
        cells = (
            _CAUSE_TEXT[b.cause],
            str(b.count) if timeline.ops else "–",
            f"{timeline.us(b.cycles):,.1f}",
            percent(part),
            f"{timeline.us(b.longest):,.1f}" if timeline.ops else "–",
            shorten(b.before, 30),
        )
        table.add_row(*map(Text, cells))
    return table
