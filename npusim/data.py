"""Where npusim's data files (chips, workloads, notebooks) are: in the wheel, or the repository."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(kind: str) -> Path:
    """The folder of one kind of data file, e.g. "configs/chips" or "workloads".

    An installed wheel carries it as `npusim/_data/<kind>`; a checkout has it at its root.
    """
    packed = _PACKAGE / "_data" / kind
    return packed if packed.is_dir() else _PACKAGE.parent / kind
