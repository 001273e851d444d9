"""How fast the simulator is, and how much memory it takes, beside its peers.

Every figure is of a whole process from a cold start: interpreter, imports, model, compilation,
simulation. Nothing is cached on disk. Medians of three.

    python benchmarks/run.py [--runs 3] [--out benchmarks] [--readme README.md]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from tables import Sheet, cores, facts_line, machine_facts, publish

HERE = Path(__file__).resolve().parent

#: Wall time of other simulators, single thread, on a 2-core x86-64 machine with Python 3.11.
PEERS = {
    "gemm-1024": "ONNXim 2.9 s, scalesim 22 s",
    "gemm-4096": "ONNXim 164 s, LLMCompass 30 s",
    "resnet50": "ONNXim 13.9 s, scalesim 129 s, zigzag 125 s",
    "bert-base": "ONNXim 134 s",
}
PEER_MEMORY = "ONNXim 47-535 MiB, zigzag 382 MiB, scalesim 1.0-8.4 GiB"


@dataclass(frozen=True)
class Process:
    """A finished process: wall seconds, peak resident memory, what it printed."""

    wall_s: float
    peak_mib: float
    output: str


@dataclass(frozen=True)
class Measure:
    """One figure.

    Attributes:
        value, unit: what was measured; limit: the most it should be, None without a target.
        command: what was run; peers: the same of other simulators; peak_mib: of that process.
    """

    name: str
    value: float
    unit: str
    command: str
    limit: float | None = None
    peers: str = ""
    peak_mib: float | None = None

    def row(self) -> list[str]:
        """As a row of the table."""
        target = "" if self.limit is None else f"≤ {self.limit:g} {self.unit}"
        met = "" if self.limit is None else ("yes" if self.value <= self.limit else "NO")
        peak = "" if self.peak_mib is None else f"{self.peak_mib:.0f}"
        value = f"{_short(self.value)} {self.unit}"
        return [self.name, value, target, met, peak, self.peers, f"`{self.command}`"]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def start(command: Sequence[str], threads: int | None = None) -> Process:
    """Run a command to its end, with its own peak memory (not that of earlier children)."""
    environ = dict(os.environ)
    if threads is not None:
        environ["OPENBLAS_NUM_THREADS"] = environ["OMP_NUM_THREADS"] = str(threads)
    before = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - before
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    scale = 1024 if sys.platform == "linux" else 1024 * 1024  # ru_maxrss: KiB; bytes on macOS
    return Process(wall, usage.ru_maxrss / scale, output)


def npusim_run(label: str, args: str, runs: int, limit: float | None, peers: str = "") -> Measure:
    """Median wall time of `npusim run ARGS`, a cold process each."""
    command = [sys.executable, "-m", "npusim.cli", "run", *args.split(), "-q"]
    done = [start(command) for _ in range(runs)]
    return Measure(
        label,
        statistics.median(p.wall_s for p in done),
        "s",
        f"npusim run {args}",
        limit,
        peers,
        max(p.peak_mib for p in done),
    )


def inside(args: str, runs: int, threads: int | None = None) -> dict[str, float]:
    """Median of each figure of `benchmarks/inside.py ARGS`, a cold process each."""
    command = [sys.executable, str(HERE / "inside.py"), *args.split()]
    found = [json.loads(start(command, threads).output) for _ in range(runs)]
    return {key: statistics.median(f[key] for f in found) for key in found[0]}


def whole_processes(runs: int) -> Iterator[Measure]:
    """Timing-only runs, ratios between them, and their peak memory."""
    cases: list[tuple[str, str, float | None, str]] = [
        ("GEMM 1024³", "gemm-1024", 1.5, PEERS["gemm-1024"]),
        ("GEMM 4096³", "gemm-4096", None, PEERS["gemm-4096"]),
        ("ResNet-50, batch 1", "resnet50", 3, PEERS["resnet50"]),
        ("ResNet-50, batch 256", "resnet50 --batch 256", None, ""),
        ("BERT-base, 128 tokens", "bert-base", None, PEERS["bert-base"]),
        ("BERT-large, 128 tokens", "bert-large", None, ""),
        ("ResNet-50, every launch in place", "resnet50 --detail full", None, ""),
    ]
    done: dict[str, Measure] = {}
    for label, args, limit, peers in cases:
        done[args] = npusim_run(label, f"{args} --timing-only", runs, limit, peers)
        yield done[args]
    for label, many, one, limit in (
        ("ResNet-50, batch 256 ÷ batch 1", "resnet50 --batch 256", "resnet50", 2),
        ("BERT-large ÷ BERT-base", "bert-large", "bert-base", 1.5),
    ):
        over, under = done[many], done[one]
        commands = f"{over.command}` ÷ `{under.command}"
        yield Measure(label, over.value / under.value, "×", commands, limit)
    most = max(done.values(), key=lambda m: m.peak_mib or 0.0)
    peak = most.peak_mib or 0.0
    yield Measure("peak memory, timing only", peak, "MiB", most.command, 300, PEER_MEMORY)


def functional(runs: int) -> Iterator[Measure]:
    """Computing real numbers, against onnxruntime with as many threads: one, and all cores."""
    whole = "ResNet-50, computed, fp32, whole process"
    yield npusim_run(whole, "resnet50 --precision fp32", runs, None)
    for label, model, limit in (
        ("ResNet-50", "resnet50", 3),
        ("BERT-base, 128 tokens", "bert-base", 3),
        ("MobileNetV2", "mobilenetv2", 5),
    ):
        for threads in sorted({1, cores()}):
            args = f"functional {model} {threads}"
            found = inside(args, runs, threads)
            command = f"python benchmarks/inside.py {args}"
            computing, reference = found["computing_s"], found["onnxruntime_s"]
            what = f"{label}, fp32, {threads} thread{'s' if threads > 1 else ''}"
            yield Measure(f"{what}: computing alone", computing, "s", command)
            yield Measure(f"{what}: onnxruntime", reference, "s", command)
            ratio = computing / reference
            yield Measure(f"{what}: computing ÷ onnxruntime", ratio, "×", command, limit)


def engine(runs: int) -> Iterator[Measure]:
    """Speed of the two engines on one MatMul."""
    found = inside("engine", runs)
    command = "python benchmarks/inside.py engine"
    for name, key, unit in (
        ("engine: SimPy", "simpy_events_per_s", "events/s"),
        ("engine: SimPy", "simpy_instructions_per_s", "instructions/s"),
        ("engine: scoreboard", "scoreboard_instructions_per_s", "instructions/s"),
        ("engine: scoreboard, folded", "folded_instructions_per_s", "instructions/s"),
    ):
        yield Measure(name, found[key], unit, command)


def scale(runs: int) -> Iterator[Measure]:
    """A hundred thousand replayed tasks on eight streams, every op kept or sums only."""
    for keep, limit in (("full", None), ("summary", 10)):
        command = [sys.executable, str(HERE / "inside.py"), "scale", keep]
        done = [start(command) for _ in range(runs)]
        yield Measure(
            f"100,000 tasks, 8 streams, timeline {keep}",
            statistics.median(json.loads(p.output)["wall_s"] for p in done),
            "s",
            f"python benchmarks/inside.py scale {keep}",
            limit,
            peak_mib=max(p.peak_mib for p in done),
        )


def sweep(runs: int) -> Iterator[Measure]:
    """A thousand chips for ResNet-50, two worker processes."""
    args, walls = "sweep design-space -j 2", []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "npusim.cli", *args.split(), "--out", f"{folder}/out"]
            walls.append(start(command).wall_s)
    yield Measure("ResNet-50 on 1,000 chips", statistics.median(walls), "s", f"npusim {args}", 60)


def main() -> None:
    """Measure, print, write results.md and results.json."""
    parser = argparse.ArgumentParser(description="Measure the simulator's speed and memory.")
    parser.add_argument("--runs", type=int, default=3, help="processes per figure (3)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of results.{md,json}")
    parser.add_argument("--readme", type=Path, help="a README whose table is renewed")
    args = parser.parse_args()
    facts = machine_facts()
    console = Console(stderr=True)
    measures: list[Measure] = []
    with console.status("measuring") as status:
        for group in (whole_processes, functional, engine, scale, sweep):
            for measure in group(args.runs):
                measures.append(measure)
                status.update(f"measured {measure.name}")
    columns = ["figure", f"median of {args.runs}", "target", "met", "peak MiB", "peers", "command"]
    sheet = Sheet("Speed", columns, [m.row() for m in measures])
    args.out.mkdir(parents=True, exist_ok=True)
    data = {"machine": facts, "runs": args.runs, "measures": [asdict(m) for m in measures]}
    (args.out / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    publish([sheet], f"Measured on: {facts_line(facts)}.", args.out / "results.md", args.readme)


if __name__ == "__main__":
    main()
