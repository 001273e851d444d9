"""What a process that uses ACL has: devices, contexts, handles, the last error of each thread.

ACL is one library per process, so this is the one place of npusim with state of the process's.
A lock stands around every call: threads take turns, as the simulation has one clock.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from npusim.chip import ChipSpec, load_chip
from npusim.errors import NpusimError
from npusim.runtime import AclError, Code, Device, HostClock, InvalidUseError, Model, Stream
from npusim.sanitize import StreamSanitizer

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("npusim.runtime")
_CHIP = "ascend910a"
_HANDLE = 16  #: handles are multiples of this, as pointers are


@dataclass(frozen=True)
class Settings:
    """What `acl.init` is told, under the key "npusim" of its JSON file.

    Attributes:
        chip: name or file; set: changes to it ("hbm.bandwidth=2.4TB/s").
        devices: how many there are; precision: models are compiled for.
        sanitize: look for races between streams; found ones are logged as the device is reset.
    """

    chip: str = _CHIP
    set: tuple[str, ...] = ()
    devices: int = 1
    precision: str = ""
    sanitize: bool = False

    @staticmethod
    def read(path: str) -> Settings:
        """The settings of a file, else of NPUSIM_CHIP and NPUSIM_SANITIZE in the environment.

        Raises:
            InvalidUseError: no such file, or not such JSON.
        """
        chip = os.environ.get("NPUSIM_CHIP", _CHIP)
        sanitize = os.environ.get("NPUSIM_SANITIZE", "0") not in ("", "0")
        if not path:
            return Settings(chip, sanitize=sanitize)
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8") or "{}").get("npusim", {})
            devices, changes = int(found.get("devices", 1)), tuple(found.get("set", ()))
            return Settings(
                str(found.get("chip", chip)),
                changes,
                devices,
                str(found.get("precision", "")),
                bool(found.get("sanitize", sanitize)),
            )
        except OSError as error:
            raise _bad_file(Code.INVALID_FILE, path, str(error.strerror)) from None
        except (ValueError, AttributeError, TypeError) as error:
            raise _bad_file(Code.PARSE_FILE, path, " ".join(str(error).split())) from None


@dataclass(eq=False)
class Context:
    """A context: a device, and the stream that 0 stands for."""

    device: Device
    default: Stream
    number: int


class Handles:
    """Integers that stand for objects, as pointers do."""

    def __init__(self) -> None:
        self._objects: dict[int, object] = {}
        self._next = itertools.count(_HANDLE, _HANDLE)

    def new(self, thing: object) -> int:
        """A handle for a thing."""
        handle = next(self._next)
        self._objects[handle] = thing
        return handle

    def get(self, handle: int, kind: type[T]) -> T:
        """The thing of a handle.

        Raises:
            InvalidUseError: there is none of that kind.
        """
        found = self._objects.get(handle)
        if not isinstance(found, kind):
            seen = "nothing" if found is None else f"a {type(found).__name__}"
            raise InvalidUseError(
                Code.RT_INVALID_HANDLE,
                f"handle {handle} is {seen}, not a {kind.__name__}",
                f"what the call that creates a {kind.__name__} returned, until it is destroyed",
                "pass that handle",
            )
        return found

    def pop(self, handle: int, kind: type[T]) -> T:
        """The thing of a handle, which is no longer valid.

        Raises:
            InvalidUseError: there is none of that kind.
        """
        found = self.get(handle, kind)
        del self._objects[handle]
        return found

    def drop(self, unwanted: Callable[[object], bool]) -> None:
        """Forget things."""
        self._objects = {h: t for h, t in self._objects.items() if not unwanted(t)}


@dataclass
class Process:
    """Everything of the process's.

    Attributes:
        turn: the lock, and the condition on which threads wait for reports.
        devices: by number, those in use; primary: their own contexts; watchers: what looks for
            races on them, if that is asked for.
        models: loaded, by number; operators: compiled, by device, type, shapes and attributes.
        subscribed: the threads that run callbacks, by stream.
        calls: made so far, by all threads.
    """

    turn: threading.Condition = field(default_factory=lambda: threading.Condition())
    settings: Settings | None = None
    chip: ChipSpec | None = None
    clock: HostClock | None = None
    devices: dict[int, Device] = field(default_factory=dict)
    watchers: dict[int, StreamSanitizer] = field(default_factory=dict)
    primary: dict[int, Context] = field(default_factory=dict)
    handles: Handles = field(default_factory=Handles)
    models: dict[int, Model] = field(default_factory=dict)
    model_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    operators: dict[tuple[object, ...], Model] = field(default_factory=dict)
    subscribed: dict[Stream, int] = field(default_factory=dict)
    finalized: bool = False
    local: threading.local = field(default_factory=threading.local)
    calls: int = 0

    def require_init(self) -> Settings:
        """The settings.

        Raises:
            InvalidUseError: acl.init was not called.
        """
        if self.settings is None:
            raise InvalidUseError(
                Code.UNINITIALIZE, "a call before acl.init", "calls after acl.init", "call acl.init"
            )
        return self.settings

    @property
    def context(self) -> Context:
        """The thread's context.

        Raises:
            InvalidUseError: it has none.
        """
        self.require_init()
        found: Context | None = getattr(self.local, "context", None)
        if found is None or self.devices.get(found.device.number) is not found.device:
            raise InvalidUseError(
                Code.RT_CONTEXT_NULL,
                "a call from a thread without a context",
                "calls after acl.rt.set_device, or acl.rt.set_context with one of its contexts",
                "call acl.rt.set_device first in every thread",
            )
        return found

    @property
    def device(self) -> Device:
        """The device of the thread's context.

        Raises:
            InvalidUseError: it has none.
        """
        return self.context.device

    def enter(self, number: int) -> Context:
        """The device's own context, made when it is new; it becomes the thread's.

        Raises:
            InvalidUseError: there is no such device.
        """
        settings = self.require_init()
        assert self.chip is not None
        if not 0 <= number < settings.devices:
            raise InvalidUseError(
                Code.RT_INVALID_DEVICEID,
                f"device {number}",
                f"0 to {settings.devices - 1}",
                'set "devices" under "npusim" in the file of acl.init',
            )
        if number not in self.devices:
            self.clock = self.clock or HostClock(self.chip)
            watcher = self._watcher(number)
            device = self.devices[number] = Device(
                self.chip, number=number, clock=self.clock, observer=watcher
            )
            made = Context(device, device.default, 0)
            made.number = self.handles.new(made)
            self.primary[number] = made
        self.local.context = self.primary[number]
        return self.primary[number]

    def _watcher(self, number: int) -> StreamSanitizer | None:
        if self.settings is None or not self.settings.sanitize:
            return None
        found = self.watchers[number] = StreamSanitizer(f"device {number}", [])
        return found

    def stream(self, handle: int) -> Stream:
        """The stream of a handle; 0 is the context's own.

        Raises:
            InvalidUseError: there is none, or it is of another device.
        """
        context = self.context
        if handle == 0:
            return context.default
        found = self.handles.get(handle, Stream)
        if context.device.machine.streams.get(found.number) is not found.queue:
            raise InvalidUseError(
                Code.RT_STREAM_CONTEXT,
                f"stream {handle}, which is of another device",
                "streams of the thread's device",
                "call acl.rt.set_context first",
            )
        return found

    def start(self, settings: Settings) -> None:
        """Begin.

        Raises:
            InvalidUseError: it has begun. ChipError: no such chip.
        """
        if self.settings is not None:
            raise InvalidUseError(
                Code.REPEAT_INITIALIZE,
                "a second acl.init",
                "one, until acl.finalize",
                "call it once",
            )
        self.chip = load_chip(settings.chip, settings.set)
        self.settings, self.clock, self.finalized = settings, None, False

    def reset(self, number: int) -> None:
        """The end of a device: what is left is reported, and its handles are no longer valid.

        Raises:
            InvalidUseError: it is not in use.
        """
        self.require_init()
        device = self.devices.pop(number, None)
        if device is None:
            raise InvalidUseError(
                Code.RT_INVALID_DEVICEID,
                f"a reset of device {number}, which is not set",
                "devices that acl.rt.set_device was called for",
                "call acl.rt.set_device first",
            )
        for model in self.operators.values():
            if model.device is device:
                model.unload()
        device.close()
        watcher = self.watchers.pop(number, None)
        if watcher is not None and watcher.findings:
            _log.warning("device %d: %s", number, watcher)
        del self.primary[number]
        self.handles.drop(lambda thing: getattr(thing, "device", None) is device)
        self.subscribed = {s: t for s, t in self.subscribed.items() if s.device is not device}
        self.models = {n: m for n, m in self.models.items() if m.device is not device}
        self.operators = {k: m for k, m in self.operators.items() if m.device is not device}

    def end(self) -> None:
        """The end of it all.

        Raises:
            InvalidUseError: it has not begun, or is over.
        """
        if self.settings is None and self.finalized:
            raise InvalidUseError(
                Code.REPEAT_FINALIZE, "a second acl.finalize", "one per acl.init", "call it once"
            )
        self.require_init()
        for number in list(self.devices):
            self.reset(number)
        self.handles = Handles()
        self.settings, self.finalized = None, True


PROCESS = Process()


def failed(error: NpusimError) -> int:
    """Keep an error's text and number for the thread; the number."""
    PROCESS.local.message = str(error)
    PROCESS.local.code = int(error.code if isinstance(error, AclError) else Code.GE_FAILURE)
    return PROCESS.local.code


def _attempt(call: Callable[[], T]) -> tuple[T | None, int]:
    """What a call gives, and its code, in the thread's turn."""
    with PROCESS.turn:
        PROCESS.calls += 1
        try:
            return call(), Code.SUCCESS.value
        except NpusimError as error:
            return None, failed(error)


def status(call: Callable[P, None]) -> Callable[P, int]:
    """A function of ACL that returns a code only."""

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> int:
        return _attempt(lambda: call(*args, **kwargs))[1]

    return guarded


def value(default: T) -> Callable[[Callable[P, T]], Callable[P, tuple[T, int]]]:
    """A function of ACL that returns a value and a code.

    Args:
        default: the value when it fails.
    """

    def decorate(call: Callable[P, T]) -> Callable[P, tuple[T, int]]:
        @wraps(call)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> tuple[T, int]:
            found, ret = _attempt(lambda: call(*args, **kwargs))
            return default if found is None else found, ret

        return guarded

    return decorate


def plain(default: T) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function of ACL that returns a value without a code.

    Args:
        default: the value when it fails.
    """

    def decorate(call: Callable[P, T]) -> Callable[P, T]:
        @wraps(call)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            found, _ = _attempt(lambda: call(*args, **kwargs))
            return default if found is None else found

        return guarded

    return decorate


def _bad_file(code: Code, path: str, reason: str) -> InvalidUseError:
    return InvalidUseError(
        code,
        f"the configuration {path}: {reason}",
        'JSON such as {"npusim": {"chip": "ascend910b2", "devices": 2}}',
        "correct the file, or call acl.init() without one",
    )
