"""The runtime: a simulated device that a Python program drives, as pyACL drives an NPU."""

from npusim.runtime.codes import Code
from npusim.runtime.device import Device, DeviceBuffer
from npusim.runtime.errors import (
    AclError,
    InvalidUseError,
    OutOfMemoryError,
    ResourceLimitError,
    SyncTimeoutError,
    TaskFailedError,
)
from npusim.runtime.event import Event
from npusim.runtime.host import HostClock
from npusim.runtime.model import Model
from npusim.runtime.pages import MemPolicy
from npusim.runtime.stream import Stream
from npusim.runtime.transfers import Way

__all__ = [
    "AclError",
    "Code",
    "Device",
    "DeviceBuffer",
    "Event",
    "HostClock",
    "InvalidUseError",
    "MemPolicy",
    "Model",
    "OutOfMemoryError",
    "ResourceLimitError",
    "Stream",
    "SyncTimeoutError",
    "TaskFailedError",
    "Way",
]
