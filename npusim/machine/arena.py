"""Device memory: one byte arena; tensors are views at their planned addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npusim.errors import ModelError
from npusim.ir import Layout, convert, pack_into, unpack
from npusim.ir.layout import channels_in_blocks
from npusim.limits import check_host_memory
from npusim.program.executable import Executable


class Arena:
    """The bytes of device memory during a functional run.

    Args:
        data: the plan's memory; new and zero by default.
        moved: the bytes of buffers that are elsewhere, by name.
        start: the first address of the plan that `data` holds.
        channels_last: tensors in NC1HWC0 have all channels of a pixel together in this memory, as
            numpy and BLAS are quickest with. Nothing but `raw` shows it; no task sees the bytes
            of such a tensor in another layout, unless they are the same (H = W = 1).

    Raises:
        ModelError: this machine has less memory than the program's weights and activations take.
    """

    def __init__(
        self,
        exe: Executable,
        data: np.ndarray | None = None,
        moved: Mapping[str, np.ndarray] | None = None,
        start: int = 0,
        channels_last: bool = False,
    ) -> None:
        self._exe = exe
        self._bytes = _new_memory(exe) if data is None else data
        self._moved = moved or {}
        self._start, self._channels_last = start, channels_last
        self._views: dict[str, np.ndarray] = {}

    def at(self, moved: Mapping[str, np.ndarray], data: np.ndarray | None = None) -> Arena:
        """The same, with these buffers elsewhere, and the plan in `data` if that is given."""
        where = self._bytes if data is None else data
        return Arena(self._exe, where, moved, self._start, self._channels_last)

    def storage(self, name: str) -> np.ndarray:
        """The buffer's device array (a view; writes go to device memory)."""
        found = self._views.get(name)
        if found is None:
            b = self._exe.buffers[name]
            found = self.raw(name).view(b.dtype.np)
            if self._channels_last and b.layout is Layout.NC1HWC0:
                n, c1, h, w, c0 = b.storage_shape
                found = channels_in_blocks(found.reshape(n, h, w, c1, c0))
            else:
                found = found.reshape(b.storage_shape)
            self._views[name] = found
        return found

    def raw(self, name: str) -> np.ndarray:
        """The buffer's bytes (a view)."""
        if name in self._moved:
            return self._moved[name]
        b = self._exe.buffers[name]
        offset = b.address - self._start
        return self._bytes[offset : offset + b.nbytes]

    def read(self, name: str) -> np.ndarray:
        """The logical array (a view when the layout is ND)."""
        b = self._exe.buffers[name]
        return unpack(self.storage(name), b.shape, b.layout)

    def write(self, name: str, value: np.ndarray) -> None:
        """Store a logical array, converted to the buffer's type and layout."""
        b = self._exe.buffers[name]
        pack_into(convert(value, b.dtype), b.layout, self.storage(name))

    def fill(
        self, address: int, nbytes: int, value: int, keep: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Fill a range with one byte value, but for the ranges (address, bytes) to keep."""
        mask = np.ones(nbytes, bool)
        for start, n in keep:
            mask[max(0, start - address) : max(0, start + n - address)] = False
        offset = address - self._start
        self._bytes[offset : offset + nbytes][mask] = value

    def load_constants(self) -> None:
        """Copy the constants into device memory, packed to their layouts."""
        for name, constant in self._exe.constants.items():
            self.write(name, constant.value().reshape(self._exe.buffers[name].shape))

    def load_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs.

        Raises:
            ModelError: an input is missing, unknown, of another shape or type, or has other
                elements than those that the program's shapes follow from.
        """
        for name in inputs:
            if name not in self._exe.inputs:
                raise ModelError(
                    f"input {name!r} is not an input of {self._exe.name}",
                    ", ".join(self._exe.inputs),
                    "pass the model's own inputs",
                )
        for name in self._exe.inputs:
            b = self._exe.buffers[name]
            value = np.asarray(inputs[name]) if name in inputs else None
            if value is None or value.shape != b.shape or value.dtype != b.dtype.np:
                seen = "missing" if value is None else f"{value.dtype.name} of shape {value.shape}"
                raise ModelError(
                    f"input {name!r} is {seen}",
                    f"{b.dtype.value} of shape {b.shape}",
                    "convert the array, or compile the model for another shape (--shape)",
                )
            assumed = self._exe.assumed.get(name)
            if assumed is not None and value.tobytes() != assumed.tobytes():
                raise ModelError(
                    f"input {name!r} has other elements than {self._exe.name} was compiled for",
                    "those whose values shapes follow from, unchanged",
                    "compile the model anew with these inputs (npusim.DynamicModel does)",
                )
            self.write(name, value)

    def outputs(self) -> dict[str, np.ndarray]:
        """Copies of the graph outputs."""
        return {name: np.array(self.read(name)) for name in self._exe.outputs}


def _new_memory(exe: Executable) -> np.ndarray:
    """Zeros for the whole plan, where this machine has that much."""
    need = exe.memory.arena_bytes
    check_host_memory(need, f"weights and activations of {exe.name}")
    memory = np.zeros(need, np.uint8)
    # Weights will be copied in; the pages of all else are asked for now, not amid the tasks.
    weights = [exe.buffers[n] for n in exe.constants]
    memory[: min((w.address for w in weights), default=need)] = 0
    memory[max((w.address + w.nbytes for w in weights), default=need) :] = 0
    return memory
