"""Optimiser steps of a profile. Their states are updated in place, once a step."""

from __future__ import annotations

from dataclasses import replace

from npusim.explore.replay.launches import Launch, replays
from npusim.explore.replay.rows_elementwise import chain
from npusim.frontends.recorded import RecordedOp


@replays("Adam", "ApplyAdam", "ApplyAdamD")
def adam(op: RecordedOp) -> Launch:
    """var, m, v, two powers, rate, two betas, epsilon, gradient."""
    return _updating(chain(op, "ApplyAdam"), 0, 1, 2)


@replays("ApplyRMSProp")
def rms_prop(op: RecordedOp) -> Launch:
    """var, mean square, momentum, rate, gradient."""
    return _updating(chain(op, op.op_type), 0, 1, 2)


@replays("FusedMulApplyMomentum")
def momentum(op: RecordedOp) -> Launch:
    """var, accumulator, rate, gradient, momentum, scale."""
    return _updating(chain(op, op.op_type), 0, 1)


@replays("ApplyMomentum", "ApplyMomentumD")
def plain_momentum(op: RecordedOp) -> Launch:
    """var, accumulator, rate, gradient, momentum."""
    return _updating(chain(op, "ApplyMomentum"), 0, 1)


@replays("LambApplyOptimizerAssign")
def lamb(op: RecordedOp) -> Launch:
    """Gradient, v, m, parameter: the update is new; v and m are updated."""
    launch = chain(op, op.op_type)
    n = len(op.inputs)
    return replace(launch, in_place=((n + 1, 1), (n + 2, 2)), state=(1, 2, 3))


@replays("LambApplyWeightAssign")
def lamb_weight(op: RecordedOp) -> Launch:
    """Norms, rate, update, parameter."""
    return _updating(chain(op, op.op_type), 4)


def _updating(launch: Launch, *inputs: int) -> Launch:
    """The launch whose outputs in order take the place of these inputs."""
    n = len(launch.args.inputs)
    pairs = tuple((n + i, x) for i, x in enumerate(inputs))
    return replace(launch, in_place=pairs, state=inputs)
