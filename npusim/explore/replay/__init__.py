"""Replay of profiles recorded on real chips. Importing registers the builders of all families."""

import npusim.kernels  # noqa: F401  (registers the kernels)
from npusim.explore.replay import (  # noqa: F401  (registers the builders)
    rows_attention,
    rows_conv,
    rows_elementwise,
    rows_indexed,
    rows_matrix,
    rows_move,
    rows_norm,
    rows_optimizer,
    rows_pool,
    rows_softmax,
)
from npusim.explore.replay.launches import Launch, known_types, launch_of, replays
from npusim.explore.replay.replay import Replay, ReplayRow, plan_for, replay, time_waves

__all__ = [
    "Launch",
    "Replay",
    "ReplayRow",
    "known_types",
    "launch_of",
    "plan_for",
    "replay",
    "replays",
    "time_waves",
]
