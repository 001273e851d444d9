"""`acl.*`: the beginning and the end, data buffers, tensor descriptions, errors."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from math import prod

import numpy as np

from npusim.acl.constants import DTYPES, LAYOUTS
from npusim.acl.state import PROCESS, Settings, plain, status
from npusim.ir import DType, Layout
from npusim.runtime import Code, InvalidUseError
from npusim.sanitize import Finding
from npusim.timeline import Timeline


@dataclass
class DataBuffer:
    """Memory of a caller's: where, and how much."""

    address: int
    nbytes: int


@dataclass
class TensorDesc:
    """Type, shape and format of a tensor.

    Attributes:
        number: aclDataType; form: aclFormat.
        constant: its value, where an operator must know it when it is compiled.
    """

    number: int
    shape: tuple[int, ...]
    form: int
    name: str = ""
    constant: np.ndarray | None = field(default=None, compare=False)

    @property
    def dtype(self) -> DType:
        """The element type.

        Raises:
            InvalidUseError: npusim has none of that number.
        """
        if self.number not in DTYPES:
            raise InvalidUseError(
                Code.UNSUPPORTED_DATA_TYPE,
                f"aclDataType {self.number}",
                ", ".join(f"{n} ({d.value})" for n, d in DTYPES.items()),
                "use one of these",
            )
        return DTYPES[self.number]

    @property
    def layout(self) -> Layout:
        """How it lies in memory.

        Raises:
            InvalidUseError: npusim has no such format.
        """
        if self.form not in LAYOUTS:
            raise InvalidUseError(
                Code.FORMAT_NOT_MATCH,
                f"aclFormat {self.form}",
                ", ".join(map(str, LAYOUTS)),
                "use one of these",
            )
        return LAYOUTS[self.form]

    @property
    def nbytes(self) -> int:
        """Bytes in memory: dimensions of blocked formats are those in memory."""
        return prod(self.shape) * self.dtype.size


@status
def init(config_path: str = "") -> None:
    """Begin; a JSON file may choose the chip ({"npusim": {"chip": "ascend910b2"}})."""
    PROCESS.start(Settings.read(config_path))


@status
def finalize() -> None:
    """End; what was not given back is reported to the logger "npusim.runtime"."""
    PROCESS.end()


@plain("")
def get_soc_name() -> str:
    """The chip's name, as CANN spells it ("Ascend910A")."""
    PROCESS.require_init()
    assert PROCESS.chip is not None
    name = PROCESS.chip.name
    return f"Ascend{name.removeprefix('ascend').upper()}" if name.startswith("ascend") else name


def get_recent_err_msg() -> str | None:
    """The text of the thread's last error, once; None when there is none."""
    text: str | None = getattr(PROCESS.local, "message", None)
    PROCESS.local.message = None
    return text


_NO_FINDINGS: tuple[Finding, ...] = ()
_NO_TIMELINE: Timeline | None = None


@plain(_NO_TIMELINE)
def timeline() -> Timeline | None:
    """What the thread's device did so far. npusim's own; None before a device is set."""
    return PROCESS.device.timeline


@plain(_NO_FINDINGS)
def findings() -> tuple[Finding, ...]:
    """Races found so far on the thread's device. npusim's own; empty unless `sanitize` is set."""
    watcher = PROCESS.watchers.get(PROCESS.device.number)
    return () if watcher is None else tuple(watcher.findings)


@plain(0)
def create_data_buffer(data: int, size: int) -> int:
    """A buffer over device memory."""
    return PROCESS.handles.new(DataBuffer(data, size))


@status
def destroy_data_buffer(data_buffer: int) -> None:
    """The end of a buffer; its memory stays."""
    PROCESS.handles.pop(data_buffer, DataBuffer)


@status
def update_data_buffer(data_buffer: int, data: int, size: int) -> None:
    """Let a buffer be over other memory."""
    found = PROCESS.handles.get(data_buffer, DataBuffer)
    found.address, found.nbytes = data, size


@plain(0)
def get_data_buffer_addr(data_buffer: int) -> int:
    """A buffer's address."""
    return PROCESS.handles.get(data_buffer, DataBuffer).address


@plain(0)
def get_data_buffer_size(data_buffer: int) -> int:
    """A buffer's bytes."""
    return PROCESS.handles.get(data_buffer, DataBuffer).nbytes


get_data_buffer_size_v2 = get_data_buffer_size


@plain(0)
def data_type_size(data_type: int) -> int:
    """Bytes of an element."""
    return TensorDesc(data_type, (), 2).dtype.size


@plain(0)
def create_tensor_desc(data_type: int, dims: list[int], format: int) -> int:
    """The description of a tensor."""
    return PROCESS.handles.new(TensorDesc(data_type, tuple(dims), format))


@plain(None)
def destroy_tensor_desc(desc: int) -> None:
    """The end of a description."""
    PROCESS.handles.pop(desc, TensorDesc)


@plain(-1)
def get_tensor_desc_type(desc: int) -> int:
    """Its aclDataType."""
    return PROCESS.handles.get(desc, TensorDesc).number


@plain(-1)
def get_tensor_desc_format(desc: int) -> int:
    """Its aclFormat."""
    return PROCESS.handles.get(desc, TensorDesc).form


@plain(0)
def get_tensor_desc_size(desc: int) -> int:
    """Its bytes in memory."""
    return PROCESS.handles.get(desc, TensorDesc).nbytes


@plain(0)
def get_tensor_desc_element_count(desc: int) -> int:
    """Its elements."""
    return prod(PROCESS.handles.get(desc, TensorDesc).shape)


@plain(0)
def get_tensor_desc_num_dims(desc: int) -> int:
    """Its rank."""
    return len(PROCESS.handles.get(desc, TensorDesc).shape)


@plain(-1)
def get_tensor_desc_dim(desc: int, index: int) -> int:
    """One of its dimensions; -1 when there is none."""
    return _dim(desc, index)


@plain((-1, int(Code.INVALID_PARAM)))
def get_tensor_desc_dim_v2(desc: int, index: int) -> tuple[int, int]:
    """One of its dimensions, and a code."""
    return _dim(desc, index), Code.SUCCESS.value


@plain("")
def get_tensor_desc_name(desc: int) -> str:
    """Its name."""
    return PROCESS.handles.get(desc, TensorDesc).name


@plain(None)
def set_tensor_desc_name(desc: int, name: str) -> None:
    """Name it."""
    PROCESS.handles.get(desc, TensorDesc).name = name


@status
def set_tensor_const(desc: int, data: int, size: int) -> None:
    """Give the value, at a host address, of an input that an operator must know to be compiled."""
    found = PROCESS.handles.get(desc, TensorDesc)
    if size != prod(found.shape) * found.dtype.size:
        raise InvalidUseError(
            Code.INVALID_PARAM,
            f"{size} B for a constant of shape {found.shape}, {found.dtype.value}",
            f"{prod(found.shape) * found.dtype.size} B",
            "pass the whole value",
        )
    raw = ctypes.string_at(data, size)
    found.constant = np.frombuffer(raw, found.dtype.np).reshape(found.shape)


def _dim(desc: int, index: int) -> int:
    shape = PROCESS.handles.get(desc, TensorDesc).shape
    if not 0 <= index < len(shape):
        raise InvalidUseError(
            Code.INVALID_PARAM,
            f"dimension {index} of a tensor of rank {len(shape)}",
            f"0 to {len(shape) - 1}",
            "ask for one of these",
        )
    return shape[index]
