"""npusim: a cycle-approximate, functional simulator of Ascend-910-like NPUs.

The short API (`load_chip`, `load_model`, `compile_graph`, `run`, `check` …) is `npusim.api`;
its names are found here too, imported when first used so that the command line starts quickly.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_API = (
    "CompileOptions",
    "LoadedModel",
    "RunResult",
    "check",
    "compile_graph",
    "load_chip",
    "load_model",
    "make_inputs",
    "run",
    "search_tilings",
)
__all__ = ["__version__", *_API]


def __getattr__(name: str) -> Any:
    if name in _API:
        from npusim import api

        return getattr(api, name)
    raise AttributeError(f"module 'npusim' has no attribute {name!r}")
