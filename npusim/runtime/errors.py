"""Errors of the runtime: npusim's three lines, with the number that ACL returns for them."""

from __future__ import annotations

from npusim.errors import NpusimError
from npusim.runtime.codes import Code


class AclError(NpusimError):
    """A call of the runtime failed.

    Args:
        code: the number that ACL returns for it.
    """

    def __init__(self, code: Code, what: str, allowed: str, fix: str) -> None:
        super().__init__(what, allowed, fix)
        self.args = (code, what, allowed, fix)
        self.code = code

    def __str__(self) -> str:
        return f"{super().__str__()} [{self.code.value} {self.code.name}]"


class InvalidUseError(AclError):
    """An argument, an order of calls, or a handle that is not allowed."""


class OutOfMemoryError(AclError):
    """No memory of that size; the text maps what is allocated."""


class ResourceLimitError(AclError):
    """The chip has no more streams or events."""


class SyncTimeoutError(AclError):
    """Something did not end in the time that was given, or never will."""


class TaskFailedError(AclError):
    """A task failed on the device, before the synchronisation that tells."""
