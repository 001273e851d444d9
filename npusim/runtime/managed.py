"""What is given back at the end of a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Managed(ABC):
    """A context manager of itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._leave(error is not None)

    @abstractmethod
    def _leave(self, failed: bool) -> None:
        """Give it back.

        Args:
            failed: the block was left by an exception.
        """
