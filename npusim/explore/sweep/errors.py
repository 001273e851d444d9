"""What can be wrong with an experiment."""

from __future__ import annotations

from npusim.errors import NpusimError


class ExperimentError(NpusimError):
    """An experiment cannot be read, or asks for what there is not."""
