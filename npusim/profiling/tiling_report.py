"""What `--opt-level O3` prints: the tilings found, and what they gain. Made for 100 columns."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from npusim.profiling.tables import table
from npusim.profiling.text import duration, percent, shorten
from npusim.timeline.tiled import TiledKernel, TilingGain

_NAME_WIDTH, _SHAPES_WIDTH = 22, 29


def gain_line(gain: TilingGain) -> str:
    """The search in a line."""
    cached = sum(k.cached for k in gain.kernels)
    simulated = sum(k.simulated for k in gain.kernels if not k.cached)
    return (
        f"{duration(gain.us(gain.total_before))} → {duration(gain.us(gain.total_after))} "
        f"({percent(gain.saved)} less); {len(gain.kernels)} kernels, {cached} cached, "
        f"{simulated} launches timed in {gain.seconds:.1f} s"
    )


def print_tilings(gain: TilingGain, console: Console, top: int) -> None:
    """Print the kernels whose tiling changed, those that gain most first."""
    ordered = sorted(gain.kernels, key=lambda k: k.after - k.before)
    better = [k for k in ordered if k.after < k.before]
    console.print(_table(gain, better[:top]))
    rest = [f"{len(better) - top} more gain less (--top {len(better)})"] if better[top:] else []
    if same := len(gain.kernels) - len(better):
        rest.append(f"{same} keep the compiler's tiling")
    if rest:
        console.print(Text("; ".join(rest), style="dim"))
    console.print(Text(f"run: {gain_line(gain)}"), "")


def print_gain(gain: TilingGain, console: Console, top: int, *, quiet: bool) -> None:
    """Print the search below a run's report: a line when quiet, else the table."""
    if quiet:
        console.print(Text(f"tilings: {gain_line(gain)}"))
        return
    console.print("")
    print_tilings(gain, console, top)


def _table(gain: TilingGain, shown: list[TiledKernel]) -> Table:
    found = table(
        "Tilings searched (times of all launches)", "type/kernel", "operands", ">times", ">blocks",
        ">before", ">after", ">less",
    )  # fmt: skip
    for k in shown:
        blocks = (
            f"{k.blocks_before} → {k.blocks_after}" if k.blocks_before != k.blocks_after
            else str(k.blocks_after)
        )  # fmt: skip
        cells = (
            shorten(f"{k.op_type}/{k.kernel}", _NAME_WIDTH), _shapes(k.shapes), str(k.launches),
            blocks, duration(gain.us(k.before)), duration(gain.us(k.after)),
            percent(1 - k.after / k.before),
        )  # fmt: skip
        found.add_row(*map(Text, cells))
    return found


def _shapes(text: str) -> str:
    """Shapes of the operands, unbroken (no-break spaces) and not too long."""
    return shorten(text.replace(" ", "\u00a0"), _SHAPES_WIDTH)


def tiling_json(gain: TilingGain) -> dict[str, object]:
    """The search as plain data, times in cycles and the run's also in µs."""
    return {
        **asdict(gain),
        "us_before": gain.us(gain.total_before),
        "us_after": gain.us(gain.total_after),
        "saved": gain.saved,
    }
