"""Replay of profiles recorded on real chips. Importing registers the builders of all families."""

import npusim.kernels  # noqa: F401  (says where kernels are)
from npusim.explore.replay import (  # noqa: F401  (registers the builders)
    rows_activation,
    rows_attention,
    rows_cann,
    rows_conv,
    rows_elementwise,
    rows_foreach,
    rows_fused,
    rows_indexed,
    rows_matrix,
    rows_move,
    rows_norm,
    rows_optimizer,
    rows_pool,
    rows_refused,
    rows_resize,
    rows_softmax,
    rows_transformer,
)
from npusim.explore.replay.launches import Launch, known_types, launch_of, replays
from npusim.explore.replay.replay import Replay, ReplayRow, plan_for, replay
from npusim.explore.replay.waves import time_waves

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
