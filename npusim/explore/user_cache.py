"""Where a user's computer keeps what can be computed again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from npusim.errors import UnsupportedError


def user_cache_dir(kind: str) -> Path:
    """npusim's folder for one kind of cached data, by the platform's convention.

    XDG_CACHE_HOME wins wherever it is set to an absolute path (the XDG specification ignores
    relative ones); else ~/.cache, ~/Library/Caches on macOS, %LOCALAPPDATA% on Windows.

    Raises:
        UnsupportedError: the user has no home folder (a container's nameless user).
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return Path(named) / "npusim" / kind
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "npusim" / kind
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        base = Path(local) if local else _home() / "AppData" / "Local"
        return base / "npusim" / "Cache" / kind
    return _home() / ".cache" / "npusim" / kind


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise UnsupportedError(
            "a cache in the user's home folder, which is not known",
            "HOME or XDG_CACHE_HOME set to an absolute path",
            "set one of them, or name the folder with --tiling-cache DIR",
        ) from None
