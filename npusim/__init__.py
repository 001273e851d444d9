"""npusim: a cycle-approximate, functional simulator of Ascend-910-like NPUs."""

__version__ = "0.1.0"
