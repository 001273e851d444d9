"""What copies and fills do to memory when they run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from npusim.machine.entries import DeviceFaultError, Range
from npusim.runtime.codes import Code
from npusim.runtime.memory import DeviceMemory


@dataclass
class CopyBytes:
    """Bytes from one place to another; each side is device memory, or host memory by its bytes.

    A copy reads the first half of its source when it starts and the rest when it ends: a source
    that changes meanwhile is copied in part as it was and in part as it is.
    """

    name: str
    memory: DeviceMemory
    source: Range | np.ndarray
    target: Range | np.ndarray
    _first: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))

    def begin(self) -> None:
        """Read the first half.

        Raises:
            DeviceFaultError: device memory that is not allocated.
        """
        self._at(self.target, "writes")
        source = self._at(self.source, "reads")
        self._first = source[: source.size // 2].copy()

    def finish(self) -> None:
        """Read the rest and write it all.

        Raises:
            DeviceFaultError: device memory that is no longer allocated.
        """
        source, target = self._at(self.source, "reads"), self._at(self.target, "writes")
        half = self._first.size
        target[half:] = source[half:]
        target[:half] = self._first
        if not isinstance(self.target, np.ndarray):
            self.memory.note_write(self.name, *self.target)

    def _at(self, side: Range | np.ndarray, verb: str) -> np.ndarray:
        return side if isinstance(side, np.ndarray) else _view(self.memory, self.name, side, verb)


@dataclass(frozen=True)
class FillBytes:
    """One byte value into a range of device memory."""

    name: str
    memory: DeviceMemory
    target: Range
    value: int

    def begin(self) -> None:
        """Nothing is read.

        Raises:
            DeviceFaultError: device memory that is not allocated.
        """
        _view(self.memory, self.name, self.target, "writes")

    def finish(self) -> None:
        """Write.

        Raises:
            DeviceFaultError: device memory that is no longer allocated.
        """
        _view(self.memory, self.name, self.target, "writes")[...] = self.value & 0xFF
        self.memory.note_write(self.name, *self.target)


def _view(memory: DeviceMemory, name: str, where: Range, verb: str) -> np.ndarray:
    address, nbytes = where
    found = memory.view(address, nbytes)
    if found is None:
        problem = memory.problem(address, nbytes)
        raise DeviceFaultError(Code.RT_DEVICE_MEM_ERROR, f"{name} {verb} {nbytes} B at {problem}")
    return found
