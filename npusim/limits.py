"""What this machine can hold."""

from __future__ import annotations

import os

from npusim.errors import ModelError


def host_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_host_memory(need: int, what: str) -> None:
    """Refuse what this machine cannot hold, before it is asked for.

    Raises:
        ModelError: `what` takes more memory than there is.
    """
    have = host_bytes()
    if need > have:
        raise ModelError(
            f"{what} take {need} bytes of memory",
            f"at most {have}, what this machine has",
            "time the model without computing it (--timing-only), or give smaller shapes",
        )
