"""Memory that a thread's work uses over and over, and fast copies into it."""

from __future__ import annotations

from math import prod

import numpy as np

LINE = 16  #: elements of a line of a processor's cache
START = 1 << 21  #: elements (8 MiB): what pieces of convolutions need


class Scratch:
    """fp32 arrays for one thread's work, one piece after the other in the same memory.

    A page that the operating system has yet to give costs more than the arithmetic on it: they
    are asked for when this is made.

    Attributes:
        used: elements in use; setting it back gives up the arrays since.
    """

    def __init__(self) -> None:
        self._block = np.empty(START, np.float32)
        self._block.fill(0)
        self.used = 0

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """A contiguous array, with whatever it holds."""
        size = prod(shape)
        if self.used + size > len(self._block):
            self._block, self.used = np.empty(self.used + size, np.float32), 0
        start = self.used
        self.used += -(-size // LINE) * LINE
        return self._block[start : start + size].reshape(shape)


def runs(a: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Contiguous runs of a contiguous array, each one element of this view of it.

    Args:
        shape: of the view, and the elements of a run last.
        strides: bytes from a run to the next, per axis but the last.
    """
    return np.ndarray(shape[:-1], np.dtype((np.void, shape[-1] * a.itemsize)), a, 0, strides)


def copy_runs(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array to one of the same shape and type, where the last axes are contiguous.

    Each run goes as one element: numpy's loops over a block of channels take twice the time.
    """
    run = np.dtype((np.void, target.shape[-1] * target.itemsize))
    if run.itemsize and all(a.strides[-1] == a.itemsize for a in (target, source)):
        target, source = target.view(run), source.view(run)
    target[...] = source


def framed(images: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
    """These rows and columns of (N, H, W, …), with zeros all around them."""
    for around in (slice(0, rows.start), slice(rows.stop, None)):
        images[:, around] = 0
    for around in (slice(0, columns.start), slice(columns.stop, None)):
        images[:, rows, around] = 0
    return images[:, rows, columns]
