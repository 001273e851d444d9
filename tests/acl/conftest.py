"""Fixtures of the tests of `npusim.acl`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import npusim.acl as acl
from npusim.acl.state import PROCESS

Start = Callable[..., None]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(chip, devices, set, sanitize)`: acl.init with such a configuration, and device 0."""

    def begin(
        chip: str = "ascend910a",
        devices: int = 1,
        changes: tuple[str, ...] = (),
        sanitize: bool = False,
    ) -> None:
        path = tmp_path / "acl.json"
        settings = {"chip": chip, "devices": devices, "set": list(changes), "sanitize": sanitize}
        path.write_text(json.dumps({"npusim": settings}), encoding="utf-8")
        assert acl.init(str(path)) == 0
        assert acl.rt.set_device(0) == 0

    yield begin
    if PROCESS.settings is not None:
        assert acl.finalize() == 0
