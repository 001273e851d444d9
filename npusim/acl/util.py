"""`acl.util`: pointers of Python's objects, and threads."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from npusim.acl.state import PROCESS
from npusim.runtime import Code
from npusim.runtime.pinned import process_bytes

_STOP = 10.0  #: seconds that `stop_thread` waits
#: The last objects that pointers were taken of: callers often keep the pointer only.
_KEPT: deque[object] = deque(maxlen=64)
_THREADS: dict[int, threading.Thread] = {}


def bytes_to_ptr(bytes_data: bytes) -> int:
    """The address of the bytes; valid while they live, and at least for the next 64 calls."""
    _KEPT.append(bytes_data)
    return ctypes.cast(ctypes.c_char_p(bytes_data), ctypes.c_void_p).value or 0


def ptr_to_bytes(ptr: int, size: int) -> bytes:
    """A copy of bytes at a host address.

    Raises:
        ValueError: it is a device address.
    """
    return bytes(_host(ptr, size))


def numpy_to_ptr(array: np.ndarray) -> int:
    """The address of an array's bytes."""
    _KEPT.append(array)
    return array.ctypes.data


def numpy_contiguous_to_ptr(array: np.ndarray) -> tuple[int, np.ndarray]:
    """The address of the array's bytes in row-major order, and the array that holds them."""
    contiguous = np.ascontiguousarray(array)
    return contiguous.ctypes.data, contiguous


def ptr_to_numpy(ptr: int, shape: tuple[int, ...], data_type: int) -> np.ndarray:
    """Bytes at a host address as an array; data_type is numpy's type number (11: float32).

    Raises:
        ValueError: it is a device address, or there is no such type.
    """
    found = [np.dtype(c) for c in np.typecodes["All"] if np.dtype(c).num == data_type]
    if not found:
        raise ValueError(f"numpy has no type number {data_type}")
    nbytes = int(np.prod(shape, dtype=np.int64)) * found[0].itemsize
    return _host(ptr, nbytes).view(found[0]).reshape(shape)


def start_thread(func: Callable[[list[object]], object], args: list[object]) -> tuple[int, int]:
    """Run `func(args)` in a thread; its number, and a code."""
    thread = threading.Thread(target=func, args=(args,), daemon=True)
    thread.start()
    assert thread.ident is not None
    _THREADS[thread.ident] = thread
    return thread.ident, Code.SUCCESS.value


def stop_thread(thread_id: int) -> int:
    """Wait until a thread is over."""
    thread = _THREADS.pop(thread_id, None)
    if thread is None:
        return Code.INVALID_PARAM.value
    thread.join(_STOP)
    return Code.FAILURE.value if thread.is_alive() else Code.SUCCESS.value


def _host(ptr: int, nbytes: int) -> np.ndarray:
    for device in PROCESS.devices.values():
        if device.memory.owns(ptr):
            raise ValueError(f"{ptr:#x} is an address of device {device.number}; copy it first")
        if device.pinned.is_pinned(ptr):
            return device.pinned.view(ptr, nbytes)
    return process_bytes(ptr, nbytes)
