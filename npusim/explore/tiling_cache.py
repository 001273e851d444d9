"""Tilings found, on disk: one small JSON file per kernel, arguments, chip and memory state.

The key is content: the launch, every value of the chip that can change its time, what it finds in
memory, and npusim itself (its version and a digest of the sources that time a kernel). A file that
cannot be read, or holds something else, counts as absent and is written anew.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import npusim
from npusim.chip.spec import ChipSpec
from npusim.machine.gm import GmState
from npusim.program.kernel import KernelArgs, Plan, Tiling

#: Code that decides which tilings there are and how long they take.
_DECIDING = (
    "chip/spec.py", "kernels/*.py", "machine/*.py", "program/*.py", "explore/tiling_*.py",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A tiling that a search chose (see `tiling_candidates.Choice` for the numbers)."""

    tiling: Tiling
    cores: int
    before: int
    after: int
    simulated: int


def key_of(
    chip: ChipSpec, kernel: str, args: KernelArgs, default: Plan, states: Mapping[GmState, int]
) -> str:
    """Everything that the choice depends on, as text."""
    found = sorted((repr(state.hbm_share), count) for state, count in states.items())
    return "\n".join(
        [_code(), _chip_digest(chip), kernel, repr(args), repr(default.tiling), repr(found)]
    )


def _chip_digest(chip: ChipSpec) -> str:
    values = chip.model_dump_json(exclude={"name", "description", "sources"})
    return sha256(values.encode()).hexdigest()


@cache
def _code() -> str:
    """npusim's version, and a digest of the code whose change would change a choice."""
    digest = sha256()
    root = Path(npusim.__file__).parent
    for pattern in _DECIDING:
        for path in sorted(root.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"npusim {npusim.__version__} {digest.hexdigest()}"


class TilingCache:
    """Entries by key in a folder, made when the first is kept.

    Attributes:
        failure: why an entry could not be written; '' when all could.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failure = ""

    def get(self, key: str) -> Entry | None:
        """The entry of a key; None when there is none that can be used."""
        try:
            data = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(data, dict) or data.pop("key", None) != key:
            return None
        tiling = data.get("tiling")
        numbers = [data.get(k) for k in ("cores", "before", "after", "simulated")]
        values = [*tiling.values(), *numbers] if isinstance(tiling, dict) else [None]
        if len(data) != 5 or not all(type(v) is int for v in values):
            return None
        return Entry(**data)

    def put(self, key: str, entry: Entry) -> None:
        """Keep an entry; whoever reads at the same time sees the old file or the new one."""
        path = self._path(key)
        text = json.dumps({"key": key, **asdict(entry)}, indent=1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(name, path)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            self.failure = (
                f"tilings cannot be kept in {self.folder} ({error.strerror or error}): the next "
                "search starts anew; name a folder that may be written with --tiling-cache DIR"
            )

    def _path(self, key: str) -> Path:
        name = sha256(key.encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.json"
