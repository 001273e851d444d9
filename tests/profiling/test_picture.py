"""Pictures of boxes and labels."""

from __future__ import annotations

from pathlib import Path
from xml.dom.minidom import parseString

import pytest

from npusim.profiling.files import WriteError
from npusim.profiling.picture import Box, Label, Picture, write_picture
from npusim.profiling.replay_plot import PlotError

PICTURE = Picture(
    "a < b", 200, 100,
    (Box(10, 10, 50, 20, "#228833", "x & y"), Box(10, 40, 80, 20, "#4477aa")),
    (Label(65, 25, "x → y", bold=True), Label(95, 55, "<z>", "middle", 11)),
)  # fmt: skip


def test_html(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    write_picture(PICTURE, path)
    page = path.read_text(encoding="utf-8")
    assert "<title>a &lt; b</title>" in page
    svg = parseString(page[page.index("<svg") :])
    assert [r.getAttribute("width") for r in svg.getElementsByTagName("rect")] == ["50.0", "80.0"]
    texts = [t.firstChild.data for t in svg.getElementsByTagName("text")]  # type: ignore[union-attr]
    assert texts == ["x → y", "<z>"]


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.png"
    write_picture(PICTURE, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError):
        write_picture(PICTURE, tmp_path / "missing" / "a.html")
    with pytest.raises(PlotError):
        write_picture(PICTURE, tmp_path / "a.svg")
