"""Memory that a thread's work uses over and over, and fast copies into it."""

from __future__ import annotations

from math import prod

import numpy as np


class Scratch:
    """Named arrays of one thread; a name's memory grows to the largest that was asked for.

    A page that the operating system has yet to give costs more than the arithmetic on it.
    """

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """fp32 of this shape, contiguous, with whatever it holds; it ends the name's last one."""
        size = prod(shape)
        held = self._held.get(name)
        if held is None or held.size < size:
            held = self._held[name] = np.empty(size, np.float32)
        return held[:size].reshape(shape)


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


def framed(a: np.ndarray, axis: int, rows: slice, columns: slice) -> np.ndarray:
    """These rows and columns (the axes `axis` and the next) of `a`, with zeros all around them."""
    front = (slice(None),) * axis
    for around in (slice(0, rows.start), slice(rows.stop, None)):
        a[*front, around] = 0
    for around in (slice(0, columns.start), slice(columns.stop, None)):
        a[*front, rows, around] = 0
    return a[*front, rows, columns]
