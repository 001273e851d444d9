"""Optimiser steps of a profile. Their states are updated in place, once a step."""

from __future__ import annotations

from dataclasses import replace

from npusim.explore.replay.launches import Launch, operand, replays
from npusim.explore.replay.rows_elementwise import chain
from npusim.frontends.recorded import RecordedOp
from npusim.program.kernel import KernelArgs


@replays("Adam", "ApplyAdam", "ApplyAdamD")
def adam(op: RecordedOp) -> Launch:
    """var, m, v, two powers, rate, two betas, epsilon, gradient."""
    return _updating(chain(op, "ApplyAdam"), 0, 1, 2)


@replays("ApplyAdamW")
def adam_w(op: RecordedOp) -> Launch:
    """var, m, v, two powers, rate, decay, two betas, epsilon, gradient."""
    return _updating(chain(op, op.op_type), 0, 1, 2)


@replays("ApplyAdamWV2")
def adam_w_v2(op: RecordedOp) -> Launch:
    """var, m, v, gradient, step: the scalar unit reads the step, here an fp32 number.

    The profile may name no outputs: the states are updated in place.
    """
    states, step = op.inputs[:3], replace(op.inputs[4], dtype="float32")
    launch = chain(op, op.op_type, inputs=(*op.inputs[:4], step), outputs=op.outputs or states)
    return _updating(launch, 0, 1, 2)


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
    """Norms, rate, update, parameter: its tiles keep rows whole, so the shape stays."""
    launch = chain(op, op.op_type)
    whole, shape = launch.args.outputs[0], op.outputs[0].shape
    ins = tuple(
        replace(o, shape=shape) if o and o.shape == whole.shape else o for o in launch.args.inputs
    )
    args = replace(launch.args, inputs=ins, outputs=(replace(whole, shape=shape),))
    return _updating(replace(launch, args=args), 4)


@replays(
    "NPUAllocFloatStatus", "NPUGetFloatStatus", "NPUClearFloatStatus", kernels=("FloatStatus",)
)
def float_status(op: RecordedOp) -> Launch:
    """The overflow status that loss scaling asks for: eight numbers."""
    inputs, outputs = (tuple(operand(t) for t in side) for side in (op.inputs, op.outputs))
    return Launch("FloatStatus", KernelArgs(op.op_type, inputs, outputs))


def _updating(launch: Launch, *inputs: int) -> Launch:
    """The launch whose outputs in order take the place of these inputs."""
    n = len(launch.args.inputs)
    pairs = tuple((n + i, x) for i, x in enumerate(inputs))
    return replace(launch, in_place=pairs, state=inputs)
