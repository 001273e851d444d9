"""Host memory: pinned blocks of the runtime's, and any other memory of the process (pageable)."""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort

import numpy as np

from npusim.runtime.codes import Code
from npusim.runtime.errors import InvalidUseError

_ALIGN = 4096  #: pinned memory starts at a page


def process_bytes(address: int, nbytes: int) -> np.ndarray:
    """Memory of this process, as it is; the address must be valid."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), np.uint8)


class HostMemory:
    """Pinned host memory, real bytes of this process at real addresses."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, np.ndarray] = {}

    def allocate(self, nbytes: int) -> int:
        """Pinned memory, zero at first; its address.

        Raises:
            InvalidUseError: no bytes asked for.
        """
        if nbytes <= 0:
            raise InvalidUseError(
                Code.RT_PARAM_INVALID, f"{nbytes} B of host memory", "1 B or more", "ask for some"
            )
        raw = np.zeros(nbytes + _ALIGN, np.uint8)
        offset = -raw.ctypes.data % _ALIGN
        block = raw[offset : offset + nbytes]
        address = block.ctypes.data
        self._blocks[address] = block
        insort(self._starts, address)
        return address

    def free(self, address: int) -> None:
        """Give pinned memory back.

        Raises:
            InvalidUseError: no pinned memory starts there.
        """
        if self._blocks.pop(address, None) is None:
            raise InvalidUseError(
                Code.RT_PARAM_INVALID,
                f"a free of host memory at {address:#x}, where none starts",
                "the address that malloc_host gave, once",
                "free it once",
            )
        self._starts.remove(address)

    def is_pinned(self, address: int) -> bool:
        """Whether an address is in pinned memory."""
        return self._block(address) is not None

    def view(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes of a range of this process.

        Raises:
            InvalidUseError: no address, or more bytes than a pinned block has.
        """
        if address <= 0 or nbytes < 0:
            raise InvalidUseError(
                Code.RT_PARAM_INVALID,
                f"{nbytes} B of host memory at {address:#x}",
                "an address of this process",
                "pass the address of an array, or of memory from malloc_host",
            )
        block = self._block(address)
        if block is None:
            return process_bytes(address, nbytes)
        offset = address - block.ctypes.data
        if offset + nbytes > block.size:
            raise InvalidUseError(
                Code.RT_PARAM_INVALID,
                f"{nbytes} B at {address:#x}, in pinned memory of {block.size} B at "
                f"{block.ctypes.data:#x}",
                f"at most {block.size - offset} B there",
                "copy fewer bytes, or allocate more",
            )
        return block[offset : offset + nbytes]

    @property
    def live(self) -> list[tuple[int, int]]:
        """Address and bytes of every block."""
        return [(address, self._blocks[address].size) for address in self._starts]

    def _block(self, address: int) -> np.ndarray | None:
        at = bisect_right(self._starts, address)
        if not at:
            return None
        block = self._blocks[self._starts[at - 1]]
        return block if address < self._starts[at - 1] + block.size else None
