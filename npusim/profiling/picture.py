"""A picture of boxes and texts, written as a .png (matplotlib) or as a page with an SVG in it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from npusim.profiling.files import WriteError
from npusim.profiling.replay_plot import check_plot

_DPI = 120
_INCH = 80  #: of the picture's pixels


@dataclass(frozen=True)
class Box:
    """A filled box, in pixels from the upper left; `hint` shows where the pointer rests."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    hint: str = ""


@dataclass(frozen=True)
class Label:
    """A text whose anchor (start, middle or end of its line) is at a point."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: int = 12
    bold: bool = False
    colour: str = "#222222"


@dataclass(frozen=True)
class Picture:
    """Boxes, and labels above them."""

    title: str
    width: int
    height: int
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]


def write_picture(picture: Picture, path: Path) -> None:
    """Draw it into a .png or .html file.

    Raises:
        PlotError: another kind of file. UnsupportedError: a PNG without matplotlib.
        WriteError: the file cannot be written.
    """
    check_plot(path)
    try:
        if path.suffix == ".html":
            path.write_text(_page(picture), encoding="utf-8")
        else:
            _png(picture, path)
    except OSError as error:
        raise WriteError(path, error) from None


def _page(p: Picture) -> str:
    parts = [
        f'<rect x="{b.x:.1f}" y="{b.y:.1f}" width="{b.width:.1f}" height="{b.height:.1f}" '
        f'fill="{b.colour}"><title>{escape(b.hint)}</title></rect>'
        for b in p.boxes
    ]
    parts += [
        f'<text x="{t.x:.1f}" y="{t.y:.1f}" text-anchor="{t.anchor}" font-size="{t.size}" '
        f'fill="{t.colour}"{" font-weight=" + chr(34) + "bold" + chr(34) if t.bold else ""}>'
        f"{escape(t.text)}</text>"
        for t in p.labels
    ]
    title = escape(p.title)
    return (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title>\n'
        f'<h1 style="font:16px sans-serif">{title}</h1>\n'
        f'<svg width="{p.width}" height="{p.height}" font-family="sans-serif">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _png(p: Picture, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    head = 30  # for the title
    figure = Figure(figsize=(p.width / _INCH, (p.height + head) / _INCH))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, p.width)
    axes.set_ylim(p.height, -head)
    axes.axis("off")
    for b in p.boxes:
        axes.add_patch(Rectangle((b.x, b.y), b.width, b.height, facecolor=b.colour, linewidth=0))
    places = {"start": "left", "middle": "center", "end": "right"}
    for t in (*p.labels, Label(p.width / 2, -10, p.title, "middle", 15)):
        axes.text(
            t.x, t.y, t.text, ha=places[t.anchor], va="baseline", color=t.colour,
            fontsize=t.size * 72 / _INCH, fontweight="bold" if t.bold else "normal",
        )  # fmt: skip
    figure.savefig(path, dpi=_DPI)
