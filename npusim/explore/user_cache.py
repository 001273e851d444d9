"""Where a user's computer keeps what can be computed again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache_dir(kind: str) -> Path:
    """npusim's folder for one kind of cached data, by the platform's convention.

    XDG_CACHE_HOME wins wherever it is set to an absolute path (the XDG specification ignores
    relative ones); else ~/.cache, ~/Library/Caches on macOS, %LOCALAPPDATA% on Windows.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return Path(named) / "npusim" / kind
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "npusim" / kind
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        base = Path(local) if local else Path.home() / "AppData" / "Local"
        return base / "npusim" / "Cache" / kind
    return Path.home() / ".cache" / "npusim" / kind
